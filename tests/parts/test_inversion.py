"""Latent inversion: its losses by hand, each switch, and that it finds what the heads know."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.func import functional_call

from fedshift import keys
from fedshift.parts import inversion
from fedshift.parts.inversion import Inversion, length, statistics_gap
from tests.parts.test_gan import waits

Z = torch.tensor([[1.0, 0.0], [3.0, 2.0], [2.0, 4.0]], dtype=torch.float64)
MEAN = torch.tensor([1.5, 1.0], dtype=torch.float64)
VAR = torch.tensor([1.0, 4.0], dtype=torch.float64)
KEYS = torch.stack([keys.as_tensor(k) for k in (1, 2)])
QUICK = Inversion(batches=3, batch=16, steps=60, lr=0.05)


def test_losses_by_hand():
    """The mean is (2, 2) and the variance (2/3, 8/3), so the gaps are (0.5, 1) and (-1/3, -4/3).

    Squared: 1.25 + 17/9; roots: 1.118034 + 1.374369. Squared lengths are 1, 13 and 20.
    """
    assert statistics_gap(Z, MEAN, VAR).item() == pytest.approx(3.138889, abs=5e-7)
    assert statistics_gap(Z, MEAN, VAR, squared=False).item() == pytest.approx(2.492403, abs=5e-7)
    assert length(Z).item() == pytest.approx(11.333333, abs=5e-7)
    assert length(Z, squared=False).item() == pytest.approx(3.025896, abs=5e-7)


@pytest.mark.parametrize(
    "loss", [lambda z: length(z, False), lambda z: statistics_gap(z, 0 * MEAN, 0 * VAR, False)]
)
def test_roots_have_a_slope_at_zero(loss):
    z = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    loss(z).backward()
    assert torch.isfinite(z.grad).all()


def network(seed: int, classes: int = 4, width: int = 6) -> nn.Module:
    """A head that has seen something: a norm with statistics, and a sharp linear layer."""
    torch.manual_seed(seed)
    norm = nn.BatchNorm1d(width, affine=False)
    net = nn.Sequential(OrderedDict(norm=norm, layer=nn.Linear(width, classes))).double()
    norm.running_mean.uniform_(-2, 2)
    norm.running_var.uniform_(0.1, 3)
    net.layer.weight.data *= 3
    return net.eval()


NETS = [network(0), network(1)]
HEADS = {
    n: torch.stack([dict(net.state_dict())[n] for net in NETS])
    for n, t in NETS[0].state_dict().items()
    if t.is_floating_point()
}
NORM = {n: HEADS[f"norm.running_{n}"] for n in ("mean", "var")}


def head(tensors, z):
    return functional_call(NETS[0], tensors, (z,))


def invert(how=QUICK, histogram=None, heads=HEADS, norm=NORM, key=KEYS):
    rows = len(key)
    histogram = torch.ones(rows, 4, dtype=torch.float64) if histogram is None else histogram
    return how.run(head, heads, norm, 6, histogram, key)


def test_latents_are_what_the_heads_know():
    z, y = invert()
    start, _ = invert(Inversion(batches=3, batch=16, steps=0))
    assert z.shape == (2, 3, 16, 6) and y.shape == (2, 3, 16)
    for k, net in enumerate(NETS):
        right = net(z[k].flatten(0, 1)).argmax(1) == y[k].flatten()
        assert right.double().mean() > 0.95, "chance is 1/4"
    strict, _ = invert(Inversion(batches=3, batch=16, steps=300, lr=0.05, statistics=1.0))
    gap = [
        statistics_gap(a, NORM["mean"][:, None], NORM["var"][:, None]).mean()
        for a in (start, strict)
    ]
    assert gap[1] < 0.02 * gap[0]


@pytest.mark.parametrize("squared", [True, False])
def test_it_is_the_plain_loop_of_the_paper(squared):
    """One batch of one client, by torch's own norm, cross-entropy and Adam with betas .5 and .9."""
    how = Inversion(batches=1, batch=16, steps=25, lr=0.05, squared=squared, statistics=0.1)
    net, y = NETS[1], torch.arange(16) % 4
    start = keys.normal(KEYS[1], (16, 6), torch.float64)
    z = start.clone().requires_grad_()
    adam = torch.optim.Adam([z], lr=0.05, betas=(0.5, 0.9), eps=1e-8)
    power = 2 if squared else 1
    for _ in range(25):
        gaps = z.mean(0) - net.norm.running_mean, z.var(0, correction=0) - net.norm.running_var
        loss = torch.nn.functional.cross_entropy(net(z), y)
        loss = loss + 0.1 * sum(torch.linalg.vector_norm(g) ** power for g in gaps)
        loss = loss + 1e-4 * (torch.linalg.vector_norm(z, dim=1) ** power).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    found = how.optimise(
        head,
        {n: t[1:] for n, t in HEADS.items()},
        {n: t[1:] for n, t in NORM.items()},
        y[None, None],
        start[None, None],
    )
    assert torch.allclose(found[0, 0], z.detach(), atol=1e-9)


def test_latents_begin_as_standard_noise_and_classes_are_uniform():
    """In 512 dimensions noise has length 22.6, the root of 512."""
    heads = {"weight": torch.zeros(1, 2, 512)}
    how = Inversion(batches=2, batch=200, steps=0)
    z, _ = how.run(head, heads, {}, 512, torch.ones(1, 2), KEYS[:1])
    assert z.norm(dim=-1).mean().item() == pytest.approx(22.6, abs=0.1)
    assert abs(z.mean().item()) < 0.01 and z.std().item() == pytest.approx(1.0, abs=0.01)


def test_carried_latents_and_memory_go_on_from_the_client_before():
    """The first client is inverted as usual; the second as if Adam had gone on with its head."""
    base = {"batches": 2, "batch": 8, "lr": 0.05}
    y = torch.arange(32).reshape(2, 2, 8) % 4
    start = keys.normal(KEYS, (2, 8, 6), torch.float64)
    alone, carried = (
        Inversion(**base, steps=10, carried=c).optimise(head, HEADS, NORM, y, start)
        for c in (False, True)
    )
    assert torch.equal(alone[0], carried[0]) and not torch.allclose(alone[1], carried[1])
    same = ({n: t[:1].expand_as(t) for n, t in tree.items()} for tree in (HEADS, NORM))
    twice = Inversion(**base, steps=10, carried=True)
    once = Inversion(**base, steps=20)
    tensors, norm = same
    both = twice.optimise(head, tensors, norm, y[:1].expand_as(y), start)
    whole = once.optimise(head, tensors, norm, y[:1].expand_as(y), start)
    assert torch.allclose(both[1], whole[0], atol=1e-12), "ten steps and ten more are twenty"


def test_clients_inverted_together_are_inverted_alone():
    together, labels = invert()
    for k in range(2):
        own = {n: t[k : k + 1] for n, t in HEADS.items()}
        norm = {n: t[k : k + 1] for n, t in NORM.items()}
        alone, y = invert(heads=own, norm=norm, key=KEYS[k : k + 1])
        assert torch.allclose(alone[0], together[k], atol=1e-12) and torch.equal(y[0], labels[k])


def test_a_small_rate_cannot_move_a_latent_far():
    """Adam moves a coordinate by about the rate in each step, whatever the gradient."""
    start, _ = invert(Inversion(batches=3, batch=16, steps=0))
    z, _ = invert(Inversion(batches=3, batch=16, steps=100, lr=1e-4))
    assert 1e-3 < (z - start).abs().max() < 1.5e-2


@pytest.mark.parametrize(
    "change",
    [{"task": 0.0}, {"statistics": 0.0}, {"length": 0.0}, {"squared": False}, {"frozen": False}],
)
def test_every_loss_counts_and_can_be_switched_off(change):
    base = {"batches": 3, "batch": 16, "steps": 20, "lr": 0.05}
    z, y = invert(Inversion(**base))
    other, same = invert(Inversion(**base, **change))
    assert torch.equal(y, same) and (z - other).abs().max() > 1e-4


def test_without_the_task_labels_do_not_matter_and_without_statistics_no_norm_is_needed():
    how = Inversion(batches=2, batch=8, steps=30, lr=0.05, task=0.0)
    labels = torch.zeros(2, 2, 8, dtype=torch.int64)
    start = keys.normal(KEYS, (2, 8, 6), torch.float64)
    a, b = (how.optimise(head, HEADS, NORM, y, start) for y in (labels, labels + 1))
    assert torch.equal(a, b)
    bare = Inversion(batches=2, batch=8, steps=3, lr=0.05, statistics=0.0)
    assert torch.isfinite(bare.optimise(head, HEADS, {}, labels, start)).all()


def test_in_train_mode_the_norm_uses_and_follows_each_batch():
    """Against torch's own batch norm, whose update is (1 - 0.1) old + 0.1 new."""
    z, net = keys.normal(KEYS[0], (16, 6), torch.float64), network(2)
    old = {n: net.norm.get_buffer(f"running_{n}").clone() for n in ("mean", "var")}
    seen = inversion._as_in_train_mode(z, old)
    assert torch.allclose(net(seen), net.train()(z), atol=1e-12)
    followed = inversion._followed(z, {n: t.clone() for n, t in old.items()})
    for n, t in followed.items():
        assert torch.allclose(t, net.norm.get_buffer(f"running_{n}"), atol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("frozen", [True, False])
def test_no_step_waits_for_the_gpu(frozen):
    heads, norm = ({n: t.cuda() for n, t in tree.items()} for tree in (HEADS, NORM))
    y = torch.zeros(2, 2, 8, dtype=torch.int64, device="cuda")
    start = keys.normal(KEYS.cuda(), (2, 8, 6), torch.float64)
    net = network(0).cuda()

    def run(steps):
        how = Inversion(batches=2, batch=8, steps=steps, frozen=frozen)
        how.optimise(lambda t, z: functional_call(net, t, (z,)), heads, norm, y, start)

    run(5)
    assert waits(25, run) == waits(5, run)


def test_labels_are_drawn_as_often_as_a_client_has_them():
    histogram = torch.tensor([[0.0, 3.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    _, y = invert(Inversion(batches=40, batch=50, steps=0), histogram)
    counts = torch.bincount(y[0].flatten(), minlength=4) / 2000
    assert counts[0] == counts[2] == 0 and counts[1].item() == pytest.approx(0.75, abs=0.04)
    assert (torch.bincount(y[1].flatten(), minlength=4) / 2000).sub(0.25).abs().max() < 0.04
