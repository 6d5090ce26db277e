"""FRAug against a plain implementation of its paper, its worked numbers, and all its switches."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedshift as fs
from fedshift import keys
from fedshift.errors import BadValue
from fedshift.federation import Facts
from fedshift.method import Ctx
from fedshift.methods.fraug import FRAug, cyclic
from fedshift.net import Net, owners
from fedshift.parts import mmd
from tests.methods.test_battery import start, state
from tests.toys import ToyNet, federation, largest_difference

D = torch.float64
SHORT = fs.Protocol(rounds=2, steps=1, batch=3, lr=0.1, momentum=0.5)
SMALL = federation((9, 7))


def context(
    phase: str = "model",
    round: int = 0,
    step: int = 0,
    steps: int = 1,
    rounds: int = 1,
    classes: int = 3,
    width: int = 8,
) -> Ctx:
    """What a hook of one client sees."""
    return Ctx(
        received={},
        kept={},
        fixed={},
        initial={},
        round=torch.tensor(round),
        step=torch.tensor(step),
        epoch=torch.tensor(0),
        steps=torch.tensor(steps),
        samples=torch.tensor(10),
        lr=torch.tensor(0.1, dtype=D),
        key=keys.as_tensor(7),
        shared=(),
        stage="train",
        phase=phase,
        facts=Facts("classification", classes, (1, 6, 6), ("a",), width),
        protocol=fs.Protocol(rounds=rounds),
    )


class Given:
    """A net whose head and submodules give what they are told to."""

    def __init__(self, heads: Any = (), **modules: torch.Tensor) -> None:
        self.heads, self.modules = iter(heads), modules

    def head(self, z: torch.Tensor) -> torch.Tensor:
        return next(self.heads)

    def call(self, module: str, *args: Any) -> torch.Tensor:
        return self.modules[module]


# -- a plain implementation ----------------------------------------------------------------------


@dataclass(frozen=True)
class Spied(FRAug):
    """FRAug that remembers its batches and keys (in the loop engine)."""

    seen: ClassVar[list[tuple[torch.Tensor, ...]]] = []

    def loss(self, out, y, ctx, net):
        if ctx.phase == "model":
            self.seen.append(
                (out.x.clone(), y.clone(), ctx.key.clone(), ctx.round, ctx.step.clone())
            )
        return super().loss(out, y, ctx, net)


def plain(
    model: nn.Module, steps: list, method: FRAug, rounds: int, per_round: int
) -> dict[str, torch.Tensor]:
    """One client's training, written with modules, modes and torch's optimizers alone."""
    g, m = model.fraug_generator, model.fraug_rtnet
    body = [model.conv, model.hidden, model.head]
    sgd = [
        torch.optim.SGD([p for part in parts for p in part.parameters()], lr, momentum=0.5)
        for parts, lr in ((body, 0.1), ([g], method.lr_generator), ([m], method.lr_rtnet))
    ]
    means, classes = torch.zeros(3, 8, dtype=D), 3

    def modes(*training: nn.Module) -> None:
        for part in (*body, g, m):
            part.train(part in training)

    for x, y, key, r, t in steps:
        n = len(x)
        lam = math.exp(method.ramp_rate * (int(r) - rounds))
        w = min(0.5, lam)
        cycle = torch.tensor([((int(r) * per_round + int(t)) * n + i) % classes for i in range(n)])

        def z(phase: str, stream: str, key=key, n=n):
            here = keys.fold_in(keys.fold_in(key, phase), stream)
            return keys.normal(here, (n, 4), D)

        modes(*body)
        u = model.features(x)
        for c in range(classes):
            if (y == c).any():
                means[c] = 0.7 * means[c] + 0.3 * u[y == c].mean(0).detach()
        with torch.no_grad():
            one = means[cycle] + lam * m(g(z("model", "means"), cycle), cycle)
            two = u + lam * m(g(z("model", "batch"), y), y)
        synthetic = F.cross_entropy(model.head(one), cycle) + F.cross_entropy(model.head(two), y)
        loss = (1 - w) * F.cross_entropy(model.head(u), y) + w * synthetic / 2
        _step(sgd[0], loss)

        modes(g)
        v = g(z("fraug-generator", "means"), cycle)
        real = model.features(x).detach()
        away = mmd.gaussian(v, real)
        _step(sgd[1], F.cross_entropy(model.head(v), cycle) - method.alpha * away)

        modes(m)
        real = model.features(x).detach()
        loss = 0.0
        for base, label, stream in ((means[cycle], cycle, "means"), (real, y, "batch")):
            made = base + m(g(z("fraug-rtnet", stream), label).detach(), label)
            p = model.head(made).softmax(1)
            entropy = -(p * p.log()).sum(1).mean()
            loss = loss + (-entropy + method.beta * mmd.gaussian(made, base)) / 2
        _step(sgd[2], loss)
    return {**model.state_dict(), "fraug_means.means": means}


def _step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for p, g in zip(params, torch.autograd.grad(loss, params, allow_unused=True), strict=True):
        p.grad = g
    optimizer.step()


def test_it_is_the_algorithm_of_the_paper():
    Spied.seen.clear()
    protocol = fs.Protocol(rounds=3, steps=2, batch=5, lr=0.1, momentum=0.5, reset_optimizer=False)
    method = Spied(ramp_rate=0.3)
    options: dict[str, Any] = {"dtype": "float64", "device": "cpu", "engine": "loop"}
    fed = federation((11,))
    run = fs.Run(fed, method, protocol, lambda: ToyNet(dropout=0.0), **options)
    model = copy.deepcopy(run.plan.model)
    run.play()
    assert len(Spied.seen) == 6
    expected = plain(model, Spied.seen, method, rounds=3, per_round=2)
    kept = run.progress.kept["a"]
    for name in run.plan.scopes:
        if name.endswith(("num_batches_tracked", "seen")):
            continue
        found = kept.get(f"model/{name}", run.progress.server.model[name])
        assert (found - expected[name]).abs().max() < 1e-10, name


# -- worked numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lam", "mixing", "total"), [(0.25, "weighted", 0.9), (0.9, "weighted", 1.1), (0.9, "sum", 2.2)]
)
def test_real_and_synthetic_loss(lam, mixing, total):
    # real 0.7, synthetic (1 + 2) / 2: 0.75 * 0.7 + 0.25 * 1.5, and halves, since w stops at 1/2
    def logits(loss: float) -> torch.Tensor:  # of one sample whose cross-entropy is `loss`
        return torch.tensor([[0.0, math.log(math.exp(loss) - 1.0)]], dtype=D)

    class Out:
        x = z = torch.zeros(1, 4, dtype=D)
        logits: ClassVar[torch.Tensor]

    Out.logits = logits(0.7)
    zeros = torch.zeros(2, 4, dtype=D)
    # cyclic labels start at 0 in round 0, and the batch's label is 0
    net = Given(
        [logits(1.0), logits(2.0)],
        fraug_means=zeros,
        fraug_generator=zeros[:1],
        fraug_rtnet=zeros[:1],
    )
    method = FRAug(ramp_rate=-math.log(lam), mixing=mixing)  # exp(rate (0 - 1)) = lam
    terms = method.loss(Out, torch.tensor([0]), context(classes=2, width=4), net)
    assert sum(terms.values()).item() == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize(("rounds", "last"), [(200, 199), (20, 19)])
def test_the_ramp_takes_the_same_course_over_any_number_of_rounds(rounds, last):
    # exp(-2), exp(-1) half way; with 200 rounds, gamma is the 0.01 of the released code
    def at(round: int, **switch: Any) -> float:
        return FRAug(**switch)._lambda(context(round=round, rounds=rounds)).item()

    assert at(0) == pytest.approx(0.135335, abs=5e-7)
    assert at(rounds // 2) == pytest.approx(0.367879, abs=5e-7)
    assert at(last) == pytest.approx(math.exp(-2 / rounds), abs=1e-12)
    assert at(0, ramp_rate=0.01) == pytest.approx(math.exp(-0.01 * rounds), abs=1e-12)


def test_cyclic_labels():
    # start ((3 * 10 + 2) * 4) mod 7 = 2
    ctx = context(round=3, step=2, steps=10, classes=7)
    assert cyclic(ctx, 4).tolist() == [2, 3, 4, 5]
    assert cyclic(ctx.replace(step=torch.tensor(3)), 4).tolist() == [6, 0, 1, 2]


def test_residuals_are_scaled_and_added():
    u, y = torch.tensor([[1.0, 2.0]], dtype=D), torch.tensor([0])
    residual = torch.tensor([[0.5, -1.0]], dtype=D)
    net = Given(fraug_generator=residual, fraug_rtnet=residual)
    made = FRAug()._embedding(u, y, "batch", context(width=2), net, 0.3)
    assert made[0].tolist() == pytest.approx([1.15, 1.70], abs=1e-12)
    # without RTNet, the generator's output is the embedding itself: 0.7 u + 0.3 v
    made = FRAug(use_rtnet=False)._embedding(u, y, "batch", context(width=2), net, 0.3)
    assert made[0].tolist() == pytest.approx([0.85, 1.10], abs=1e-12)


@pytest.mark.parametrize(
    ("classes", "generator", "rtnet"),
    [(7, 399_872, 266_240), (10, 401_408, 267_008), (65, 429_568, 281_088)],
)
def test_published_sizes(classes, generator, rtnet):
    facts = Facts("classification", classes, (3, 32, 32), ("a",), width=512)
    model = FRAug().build(nn.Module(), facts)
    counts = {n: sum(p.numel() for p in m.parameters()) for n, m in model.named_children()}
    assert counts == {"fraug_generator": generator, "fraug_rtnet": rtnet, "fraug_means": 0}


# -- who learns from what ------------------------------------------------------------------------


def test_the_synthetic_loss_reaches_the_head_alone():
    plan = start(FRAug()).plan
    model = plan.model.train()
    x, y = SMALL.clients[0].train.x[:6].to(D), SMALL.clients[0].train.y[:6]
    net = Net(model)
    terms = FRAug().loss(net.output(x), y, context(), net)
    assert set(terms) == {"task", "synthetic"}
    params = dict(model.named_parameters())
    for term, reached in (("synthetic", {"head"}), ("task", {"conv", "hidden", "head"})):
        grads = torch.autograd.grad(
            terms[term], list(params.values()), allow_unused=True, retain_graph=True
        )
        found = {n.split(".")[0] for n, g in zip(params, grads, strict=True) if g is not None}
        assert found == reached


@pytest.mark.parametrize(
    ("rates", "moved"),
    [
        ({"lr_generator": 0.1, "lr_rtnet": 0.0}, "fraug_generator"),
        ({"lr_generator": 0.0, "lr_rtnet": 0.1}, "fraug_rtnet"),
    ],
)
def test_each_network_learns_in_its_own_phase(rates, moved):
    run = start(FRAug(**rates), SHORT.replace(lr=0.0), fed=SMALL)
    before = {n: p.detach().clone() for n, p in run.plan.model.named_parameters()}
    run.play()
    kept = run.progress.kept["a"]
    after = {n: kept.get(f"model/{n}", run.progress.server.model[n]) for n in before}
    changed = {n.split(".")[0] for n in before if (after[n] - before[n]).abs().max() > 1e-9}
    assert changed == {moved}


def test_what_travels():
    shares = {n: s.share for n, s in start(FRAug()).plan.scopes.items()}
    kept = {n for n, s in shares.items() if s == "kept"}
    assert {n for n in kept if n.startswith("conv")} == {n for n in shares if "conv.1." in n}
    assert all(n in kept for n in shares if n.startswith(("fraug_rtnet", "fraug_means")))
    shared = {n for n in shares if n.startswith("fraug_generator")} - kept
    assert shared == {n for n in shares if n.startswith("fraug_generator") and "linear" in n}
    assert set(shares.values()) == {"kept", "both"}
    run = start(FRAug(local_generator_norm=False, local_norm=False))
    kept = set(run.plan.names("kept"))
    assert {n.split(".")[0] for n in kept} == {"fraug_rtnet", "fraug_means"}


def test_batch_norms_of_shortcuts_may_be_shared():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn1 = nn.BatchNorm2d(2)
            self.downsample = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))

    def kept(method: FRAug) -> set[str]:
        owned = owners(Block())
        return {
            n.rpartition(".")[0] for n, m in owned.items() if method.scope(n, m).share == "kept"
        }

    assert kept(FRAug()) == {"bn1", "downsample.1"}
    assert kept(FRAug(share_downsample=True)) == {"bn1"}
    assert kept(FRAug(local_norm=False)) == set()


def test_class_means_are_the_clients_own():
    run = start(FRAug(), SHORT, fed=SMALL).play()
    a, b = (run.progress.kept[c]["model/fraug_means.means"] for c in "ab")
    assert a.abs().max() > 0 and b.abs().max() > 0 and (a - b).abs().max() > 1e-6
    assert run.progress.server.model["fraug_means.means"].abs().max() == 0.0


def test_without_embeddings_it_is_fedbn():
    a = start(FRAug(augment="none"), SHORT, fed=SMALL).play()
    b = start(fs.methods.FedBN(), SHORT, fed=SMALL).play()
    assert largest_difference(state(a), state(b)) < 1e-12


# -- switches ------------------------------------------------------------------------------------

SWITCHES: list[dict[str, Any]] = [
    {"alpha": 0.0},
    {"beta": 0.0},
    {"generator_distance": "l2"},
    {"generator_distance": "mean-cov"},
    {"rtnet_distance": "l2"},
    {"rtnet_distance": "mean-cov"},
    {"lr_generator": 0.0},
    {"lr_rtnet": 0.0},
    {"ramp": "gaussian"},
    {"ramp": "hyperbolic"},
    {"ramp": "half"},
    {"ramp_rate": 0.5},
    {"ramp_residual": False},
    {"mixing": "sum"},
    {"local_norm": False},
    {"local_generator_norm": False},
    {"noise": "uniform"},
    {"means_rate": 0.9},
    {"means_ramp": True},
    {"means_warm": True},
    {"means_shrink": True},
    {"confusion": "non-saturating"},
    {"rtnet_ramp": True},
    {"cap": 0.0},
    {"stream": "batch"},
    {"stream": "means"},
    {"input_noise": 0.1},
]
# with these the model has other tensors
ABLATIONS: list[dict[str, Any]] = [
    {"rtnet_norm": False},
    {"noise_width": 3},
    {"use_generator": False, "stream": "batch"},
    {"use_rtnet": False, "stream": "means"},
    {"augment": "uniform"},
    {"augment": "laplace"},
    {"augment": "normal", "local_norm": False},
]
# between them, every line that is not of the default
OTHER_LINES: list[dict[str, Any]] = [
    {},
    {
        "generator_distance": "l2",
        "rtnet_distance": "mean-cov",
        "ramp": "gaussian",
        "mixing": "sum",
        "noise": "uniform",
        "means_warm": True,
        "confusion": "non-saturating",
        "rtnet_ramp": True,
    },
    {
        "generator_distance": "mean-cov",
        "rtnet_distance": "l2",
        "ramp": "hyperbolic",
        "ramp_residual": False,
        "means_ramp": True,
        "means_shrink": True,
        "input_noise": 0.1,
        "use_rtnet": False,
    },
    {"ramp": "half", "use_generator": False},
]


def learnt(method: Any, steps: int = 1, **options: Any) -> dict[str, torch.Tensor]:
    """What a short run learns; with this seed, second batches lack a class."""
    options.setdefault("seed", 1)
    return state(start(method, SHORT.replace(steps=steps), fed=SMALL, **options).play())


def both(method: Any, steps: int = 1) -> dict[str, torch.Tensor]:
    """The same, after checking that both engines learn it."""
    loop = learnt(method, steps)
    assert largest_difference(loop, learnt(method, steps, engine="stacked")) < 1e-9
    return loop


@pytest.fixture(scope="module")
def default() -> dict[str, torch.Tensor]:
    return learnt(FRAug())


@pytest.mark.parametrize("switch", SWITCHES, ids=str)
def test_every_switch_changes_what_is_learnt(switch, default):
    changed = learnt(FRAug(**switch))
    shared = set(changed) & set(default)
    a, b = ({n: s[n] for n in shared} for s in (changed, default))
    assert largest_difference(a, b) > 1e-7


@pytest.mark.parametrize("switches", OTHER_LINES, ids=len)
def test_every_line_is_the_same_on_both_engines(switches):
    both(FRAug(**switches))


@pytest.mark.parametrize("switch", ABLATIONS, ids=str)
def test_ablations_have_what_they_need_on_both_engines(switch, default):
    changed = both(FRAug(**switch))
    names = {n.split("/")[-1].split(".")[0] for n in changed if "fraug" in n}
    expected = {"fraug_generator", "fraug_rtnet", "fraug_means"}
    if "augment" in switch:
        expected = set()
    expected -= {"fraug_generator"} if not switch.get("use_generator", True) else set()
    expected -= {"fraug_rtnet"} if not switch.get("use_rtnet", True) else set()
    assert names == expected
    assert (changed["head.weight"] - default["head.weight"]).abs().max() > 1e-7


def test_phases_follow_the_ablations():
    def names(**switch: Any) -> list[str]:
        return [p.name for p in FRAug(**switch).phases()]

    assert names() == ["model", "fraug-generator", "fraug-rtnet"]
    assert names(use_generator=False) == ["model", "fraug-rtnet"]
    assert names(use_rtnet=False) == ["model", "fraug-generator"]
    assert names(augment="normal") == names(augment="none") == ["model"]
    assert [p.lr for p in FRAug(lr_generator=0.3, lr_rtnet=0.4).phases()] == [None, 0.3, 0.4]


@pytest.mark.parametrize("kind", ["uniform", "laplace", "normal"])
def test_noise_on_embeddings_of_the_batch(kind):
    class Out:
        x = z = torch.ones(5, 8, dtype=D)

    def moved(spread: float) -> torch.Tensor:
        method = FRAug(augment=kind, spread=spread)
        [(made, base, label)] = method._made(Out, torch.arange(5) % 3, context(), Given(), True)
        assert torch.equal(base, Out.z) and label.tolist() == [0, 1, 2, 0, 1]
        return made - base

    assert moved(0.2).abs().max() > 0.01
    assert torch.allclose(moved(0.4), 2 * moved(0.2))


def test_noise_on_inputs():
    x, y = torch.zeros(50, 1, 6, 6), torch.arange(50) % 3
    noisy, same = FRAug(input_noise=0.1).batch(x, y, context())
    assert noisy.std().item() == pytest.approx(0.1, rel=0.1) and same is y
    assert FRAug().batch(x, y, context())[0] is x


@pytest.mark.parametrize("other", [fs.methods.FedProx(mu=1.0), fs.methods.Mixup()])
def test_with_other_methods(other):
    combined, alone = both(FRAug() + other, steps=2), learnt(FRAug(), steps=2)
    assert (combined["conv.0.weight"] - alone["conv.0.weight"]).abs().max() > 1e-6


def test_in_bfloat16_tensors_stay_float32_and_finite():
    run = fs.Run(
        SMALL,
        FRAug(),
        SHORT,
        ToyNet,
        dtype="bf16",
        device="cpu",
        engine="loop",
        warn=lambda m: None,
    ).play()
    tensors = state(run)
    assert all(torch.isfinite(t).all() for t in tensors.values() if t.is_floating_point())
    assert tensors["fraug_generator.out.linear.weight"].dtype == torch.float32


def test_what_cannot_be_is_refused():
    with pytest.raises(BadValue, match="neither generator nor RTNet"):
        FRAug(use_generator=False, use_rtnet=False)
    facts = Facts("segmentation", 2, (1, 8, 8), ("a",), width=4)
    with pytest.raises(BadValue, match="one label per sample"):
        FRAug().build(nn.Module(), facts)
