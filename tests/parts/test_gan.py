"""The StarGAN on vectors: sizes, the gradient penalty, each switch, and that it translates."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
import torch

from fedshift import keys
from fedshift.models.spec import seeded
from fedshift.parts.gan import StarGAN, critic, gradient_penalty, judge, translate, translator

QUICK = StarGAN(hidden=16, steps=6, batch=8, lr=1e-3, every=2)


def count(tensors):
    return sum(t.numel() for t in tensors.values())


def test_sizes_of_the_papers():
    """PACS and Office-Home: 512 features, 3 domains; DomainNet: 4096 features, 5 domains."""
    assert count(translator(512, 3, 1024)) == 2_109_952
    assert count(critic(512, 3, 1024)) == 1_055_236
    assert count(translator(4096, 5, 2048)) == 21_008_384
    assert count(critic(4096, 5, 2048)) == 10_501_126


def slope(x):
    return 3 * x[:, 0] + 4 * x[:, 1]


def test_gradient_penalty_by_hand():
    """The slope of 3a + 4b is 5 everywhere, so (5 - 1)^2; over B rows at once it is 5 sqrt(B)."""
    real, made = keys.normal(
        torch.stack([keys.as_tensor(k) for k in (1, 2)]), (4, 2), torch.float64
    )
    at = keys.uniform(keys.as_tensor(3), (4,), torch.float64)
    assert gradient_penalty(slope, real, made, at).item() == pytest.approx(16.0, abs=1e-9)
    mixed = gradient_penalty(slope, real, made, at, mixed=True)
    assert mixed.item() == pytest.approx((5 * 4**0.5 - 1) ** 2, abs=1e-9)


def test_gradient_penalty_is_taken_between_real_and_made():
    """For a^2 / 2 the slope is a itself: 2 at one quarter of the way from 0 to 8."""
    real, made = torch.tensor([[8.0]]), torch.tensor([[0.0]])
    penalty = gradient_penalty(lambda x: x[:, 0] ** 2 / 2, real, made, torch.tensor([0.25]))
    assert penalty.item() == pytest.approx(1.0, abs=1e-5)


def test_a_flat_score_has_a_penalty_and_a_slope():
    w = torch.zeros(2, requires_grad=True)
    gradient_penalty(lambda x: x @ w, torch.ones(3, 2), torch.zeros(3, 2), torch.ones(3)).backward()
    assert torch.isfinite(w.grad).all()


def test_a_translation_knows_where_it_comes_from_and_goes_to():
    torch.manual_seed(0)
    t, z = translator(4, 3, 8), torch.randn(5, 4)
    d = torch.zeros(5, dtype=torch.int64)
    a, b, c = (translate(t, z, *pair) for pair in ((d, d), (d, d + 1), (d + 1, d)))
    assert a.abs().max() <= 1 and not torch.allclose(a, b) and not torch.allclose(b, c)
    free = translate(t, z, d, d, bounded=False)
    assert torch.allclose(free.tanh(), a)


def domains(n=120):
    """Two domains around (-0.5, …) and (0.5, …), two classes told by the last coordinate."""
    d, y = torch.arange(n) % 2, (torch.arange(n) // 2) % 2
    z = 0.1 * keys.normal(keys.as_tensor(0), (n, 3), torch.float64)
    z[:, :2] += (d - 0.5)[:, None]
    z[:, 2] += (y - 0.5) * 0.8
    return z, y, d


def heads(z):
    logits = torch.stack([-4 * z[:, 2], 4 * z[:, 2]], dim=1)
    return torch.stack([logits, 2 * logits])


def train(**change):
    z, y, d = domains()
    return dataclasses.replace(QUICK, **change).train(z, y, d, 2, heads, key=5)


def test_it_translates():
    z, y, d = domains()
    t = train(hidden=32, steps=250, lr=3e-3, every=2, dropout=0.0, batch=16)
    first, own = z[d == 0], y[d == 0]
    zero = torch.zeros(len(first), dtype=torch.int64)
    there = translate(t, first, zero, zero + 1)
    assert (there[:, :2].mean(0) - 0.5).abs().max() < 0.25, "it began at -0.5"
    assert ((there[:, 2] > 0) == (own == 1)).double().mean() > 0.9
    back = translate(t, there, zero + 1, zero)
    assert (back - first).abs().mean() < 0.2


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "vanilla"},
        {"bounded": False},
        {"dropout": 0.0},
        {"every": 3},
        {"domain": 0.0},
        {"cycle": 0.0},
        {"penalty": 0.0},
        {"label": 0.0},
        {"mixed": True},
        {"one_class": True},
        {"lr": 2e-3},
        {"batch": 4},
        {"eps": 1e-4},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_switch_changes_the_training(change):
    plain, other = train(), train(**change)
    assert max((plain[n] - other[n]).abs().max() for n in plain) > 1e-7


def test_it_is_repeated_by_its_key_and_touches_no_generator():
    before = torch.get_rng_state()
    a, b = train(), train()
    assert all(torch.equal(a[n], b[n]) for n in a) and torch.equal(before, torch.get_rng_state())
    assert all(t.dtype == torch.float64 and not t.requires_grad for t in a.values())


def test_it_is_the_plain_loop_of_the_paper():
    """Adam with betas .5 and .999: the critic takes every step, the translator every third."""
    z, y, d = domains()
    gan = dataclasses.replace(QUICK, dropout=0.0, steps=7, every=3)
    with seeded(keys.fold(5, "networks")):
        both = {"translator": translator(3, 2, 16), "critic": critic(3, 2, 16)}
    both = {n: {m: t.double().requires_grad_() for m, t in own.items()} for n, own in both.items()}
    adam = {
        n: torch.optim.Adam(own.values(), lr=1e-3, betas=(0.5, 0.999), eps=1e-8)
        for n, own in both.items()
    }
    for step in range(7):
        here = keys.fold_in(keys.as_tensor(5), step)
        at = keys.integers(keys.fold_in(here, "sample"), len(z), (8,))
        target = d[at][keys.permutation(keys.fold_in(here, "target"), 8)]
        assert sorted(target.tolist()) == sorted(d[at].tolist()), "the batch's domains, permuted"
        batch, between = (z[at], y[at], d[at], target), keys.fold_in(here, "between")
        turns = [("critic", gan.critic_loss), ("translator", gan.translator_loss)]
        for name, loss in turns[: 1 + (step in (2, 5))]:
            adam[name].zero_grad()
            loss(both, batch, heads, between).backward()
            adam[name].step()
    found = gan.train(z, y, d, 2, heads, key=5)
    assert max((found[n] - t).abs().max() for n, t in both["translator"].items()) < 1e-9
    early = dataclasses.replace(gan, steps=2).train(z, y, d, 2, heads, key=5)
    with seeded(keys.fold(5, "networks")):
        fresh = translator(3, 2, 16)
    assert all(torch.equal(early[n], t.double()) for n, t in fresh.items()), "two steps are too few"


def test_networks_are_those_of_the_paper():
    """Layer by layer: linear, leaky ReLU (0.2), layer norm; heads behind half the width."""
    z, d = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    t, c = translator(4, 3, 8), critic(4, 3, 8)

    def block(tensors, name, x):
        layer = torch.nn.Linear(*tensors[f"{name}.weight"].shape[::-1])
        norm = torch.nn.LayerNorm(layer.out_features)
        layer.weight.data, layer.bias.data = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        return norm(torch.nn.functional.leaky_relu(layer(x), 0.2))

    told = [torch.nn.functional.one_hot(k, 3).float() for k in (d, d.flip(0))]
    x = block(t, "two", block(t, "one", torch.cat([z, *told], dim=1)))
    wanted = torch.tanh(x @ t["out.weight"].T + t["out.bias"])
    assert torch.allclose(translate(t, z, d, d.flip(0)), wanted, atol=1e-6)
    x = block(c, "two", block(c, "one", z))
    score, seen = judge(c, z)
    assert torch.allclose(score, x @ c["real.weight"][0] + c["real.bias"], atol=1e-6)
    assert torch.allclose(seen, x @ c["domain.weight"].T + c["domain.bias"], atol=1e-6)


def test_dropout_lies_behind_the_first_layers():
    """With everything dropped there, the input no longer matters."""
    t, c, d = translator(4, 3, 8), critic(4, 3, 8), torch.tensor([0, 1])
    a, b = (translate(t, z, d, d, dropout=1.0) for z in (torch.zeros(2, 4), torch.ones(2, 4)))
    assert torch.equal(a, b) and not torch.allclose(a, translate(t, torch.ones(2, 4), d, d))
    score, _ = judge(c, torch.randn(2, 4), dropout=1.0)
    assert score[0] == score[1]


def waits(steps, how):
    """How often the host waits for the GPU while so many steps are taken."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            how(steps)
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum("synchronizing" in str(w.message) for w in seen)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_no_step_waits_for_the_gpu():
    z, y, d = (t.cuda() for t in domains())

    def run(steps):
        dataclasses.replace(QUICK, steps=steps).train(z.float(), y, d, 2, heads, 5)

    run(5)
    assert waits(25, run) == waits(5, run)


def nets():
    torch.manual_seed(1)
    both = {"translator": translator(3, 2, 16), "critic": critic(3, 2, 16)}
    return {n: {m: t.double() for m, t in net.items()} for n, net in both.items()}


def test_losses_are_the_sums_that_the_papers_write():
    z, y, d = domains(8)
    gan, both, target = dataclasses.replace(QUICK, dropout=0.0), nets(), d.flip(0)
    batch, key = (z, y, d, target), keys.as_tensor(0)
    made = translate(both["translator"], z, d, target)
    real, seen = judge(both["critic"], z)
    fake, made_seen = judge(both["critic"], made)

    def ce(logits, wanted):
        return torch.nn.functional.cross_entropy(logits, wanted)

    at = keys.uniform(key, (8,), torch.float64)
    penalty = gradient_penalty(lambda x: judge(both["critic"], x)[0], z, made, at)
    wanted = -real.mean() + fake.mean() + ce(seen, d) + 10 * penalty
    assert torch.allclose(gan.critic_loss(both, batch, heads, key), wanted)
    back = (z - translate(both["translator"], made, target, d)).abs().mean()
    kept = sum(ce(one, y) for one in heads(made))
    wanted = -fake.mean() + ce(made_seen, target) + 10 * back + 0.1 * kept
    assert torch.allclose(gan.translator_loss(both, batch, heads, key), wanted)
    vanilla = dataclasses.replace(gan, kind="vanilla", label=0.0)
    wanted = -real.sigmoid().log().mean() - (1 - fake.sigmoid()).log().mean() + ce(seen, d)
    assert torch.allclose(vanilla.critic_loss(both, batch, heads, key), wanted)
    wanted = -fake.sigmoid().log().mean() + ce(made_seen, target) + 10 * back
    assert torch.allclose(vanilla.translator_loss(both, batch, heads, key), wanted)


def test_batches_of_one_class():
    y = torch.tensor([3, 0, 0, 3, 1, 0])
    draw = dataclasses.replace(QUICK, one_class=True, batch=5)._sampler(y)
    mixed = dataclasses.replace(QUICK, batch=5)._sampler(y)
    batches = [draw(keys.as_tensor(k)) for k in range(60)]
    assert all(len(set(y[at].tolist())) == 1 for at in batches)
    assert set(torch.cat(batches).tolist()) == set(range(6))
    assert any(len(set(y[mixed(keys.as_tensor(k))].tolist())) > 1 for k in range(60))
