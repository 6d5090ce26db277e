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
from fedshift.errors import BadData, BadModel, BadValue
from fedshift.federation import Client, Facts, Federation, Samples
from fedshift.method import Ctx
from fedshift.methods.fraug import FRAug, _cycle
from fedshift.net import Net, owners
from fedshift.parts import mmd
from tests.methods.test_battery import start, state
from tests.toys import ToyNet, federation, largest_difference, samples

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


class Alone:
    """One client, written with modules, modes and torch's optimizers alone."""

    def __init__(self, model: nn.Module, method: FRAug, protocol: fs.Protocol) -> None:
        self.model, self.method, self.protocol = copy.deepcopy(model), method, protocol
        m = self.model
        self.body = [m.conv, m.hidden, m.head]
        self.g, self.m = m.fraug_generator, m.fraug_rtnet
        self.sgd = [
            torch.optim.SGD([p for part in parts for p in part.parameters()], lr, momentum=0.5)
            for parts, lr in (
                (self.body, 0.1),
                ([self.g], method.lr_generator),
                ([self.m], method.lr_rtnet),
            )
        ]
        self.means = torch.zeros(3, 8, dtype=D)

    def modes(self, *training: nn.Module) -> None:
        for part in (*self.body, self.g, self.m):
            part.train(part in training)

    def step(self, x, y, key, r: int, t: int) -> None:
        model, g, m, means, method = self.model, self.g, self.m, self.means, self.method
        n, classes = len(x), 3
        lam = math.exp(method.ramp_rate * (r - self.protocol.rounds))
        w, scale = min(0.5, lam), lam if method.ramp_residual == "model" else 1.0
        cycle = torch.tensor([((r * self.protocol.steps + t) * n + i) % classes for i in range(n)])

        def z(phase: str, stream: str):
            return keys.normal(keys.fold_in(keys.fold_in(key, phase), stream), (n, 4), D)

        self.modes(*self.body)
        u = model.features(x)
        for c in range(classes):
            if (y == c).any():
                means[c] = 0.7 * means[c] + 0.3 * u[y == c].mean(0).detach()
        with torch.no_grad():
            one = means[cycle] + scale * m(g(z("model", "means"), cycle), cycle)
            two = u + scale * m(g(z("model", "batch"), y), y)
        synthetic = F.cross_entropy(model.head(one), cycle) + F.cross_entropy(model.head(two), y)
        _step(self.sgd[0], (1 - w) * F.cross_entropy(model.head(u), y) + w * synthetic / 2)

        self.modes(g)
        v = g(z("fraug_generator", "means"), cycle)
        if method.generator_distance == "l2":
            away = ((v - means[cycle]) ** 2).mean()
        else:
            away = mmd.gaussian(v, model.features(x).detach())
        _step(self.sgd[1], F.cross_entropy(model.head(v), cycle) - method.alpha * away)

        self.modes(m)
        real = model.features(x).detach()
        loss = torch.zeros((), dtype=D)
        for base, label, stream in ((means[cycle], cycle, "means"), (real, y, "batch")):
            made = base + m(g(z("fraug_rtnet", stream), label).detach(), label)
            p = model.head(made).softmax(1)
            entropy = -(p * p.log()).sum(1).mean()
            loss = loss + (-entropy + method.beta * mmd.gaussian(made, base)) / 2
        _step(self.sgd[2], loss)


def _step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for p, g in zip(params, torch.autograd.grad(loss, params, allow_unused=True), strict=True):
        p.grad = g
    optimizer.step()


# the defaults, and what the page says of Digits
SETTINGS: list[dict[str, Any]] = [
    {"ramp_rate": 0.3},
    {
        "ramp_rate": 0.3,
        "ramp_residual": "never",
        "generator_distance": "l2",
        "alpha": 1.0,
        "beta": 1.0,
        "lr_generator": 0.05,
        "local_generator_norm": False,
    },
]


@pytest.mark.parametrize("setting", SETTINGS, ids=["office-home", "digits"])
def test_it_is_the_algorithm_of_the_paper(setting):
    Spied.seen.clear()
    protocol = fs.Protocol(
        rounds=3,
        steps=2,
        batch=5,
        lr=0.1,
        momentum=0.5,
        reset_optimizer=False,
        weights="samples",
    )
    method = Spied(**setting)
    options: dict[str, Any] = {"dtype": "float64", "device": "cpu", "engine": "loop", "workers": 1}
    fed = federation((11, 7))
    run = fs.Run(fed, method, protocol, lambda: ToyNet(dropout=0.0), **options)
    clients = [Alone(run.plan.model, method, protocol) for _ in fed.clients]
    run.play()
    assert len(Spied.seen) == 3 * 2 * 2, "rounds, clients, steps"
    steps = iter(Spied.seen)
    shared_norms = setting.get("local_generator_norm", True) is False
    for _ in range(protocol.rounds):
        for client in clients:
            for _ in range(protocol.steps):
                x, y, key, r, t = next(steps)
                client.step(x, y, key, int(r), int(t))
        _average([c.model for c in clients], (11 / 18, 7 / 18), shared_norms)
    for name, client in zip("ab", clients, strict=True):
        expected = {**client.model.state_dict(), "fraug_means.means": client.means}
        kept = run.progress.kept[name]
        for tensor in run.plan.scopes:
            if not tensor.endswith(("num_batches_tracked", "seen")):
                found = kept.get(f"model/{tensor}", run.progress.server.model[tensor])
                assert (found - expected[tensor]).abs().max() < 1e-10, (name, tensor)


def _average(models: list[nn.Module], weights: tuple[float, ...], generator_norms: bool) -> None:
    """The weighted mean of all but RTNet, class means and batch norms."""
    for path, module in models[0].named_modules():
        norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
        if path.startswith(("fraug_rtnet", "fraug_means")) or (
            norm and not (generator_norms and path.startswith("fraug_generator"))
        ):
            continue
        own = [m.get_submodule(path).state_dict(keep_vars=True) for m in models]
        for name in module.state_dict():
            if "." in name or name == "num_batches_tracked":
                continue
            mean = sum(w * o[name].detach() for w, o in zip(weights, own, strict=True))
            for o in own:
                o[name].detach().copy_(mean)


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
    class Out:
        x = torch.zeros(4, 1)

    ctx = context(round=3, step=2, steps=10, classes=7)
    assert _cycle(Out, ctx).tolist() == [2, 3, 4, 5]
    assert _cycle(Out, ctx.replace(step=torch.tensor(3))).tolist() == [6, 0, 1, 2]


@pytest.mark.parametrize(
    ("switch", "phase", "expected"),
    [
        ({}, "model", [1.15, 1.70]),
        ({}, "fraug_rtnet", [1.5, 1.0]),
        ({"ramp_residual": "always"}, "fraug_rtnet", [1.15, 1.70]),
        ({"ramp_residual": "never"}, "model", [1.5, 1.0]),
        # without RTNet, 0.7 u + 0.3 v, or the generator's output v itself
        ({"augment": "generator"}, "model", [0.85, 1.10]),
        ({"augment": "generator", "ramp_residual": "never"}, "model", [0.5, -1.0]),
    ],
)
def test_residuals_are_scaled_and_added(switch, phase, expected):
    u, y = torch.tensor([[1.0, 2.0]], dtype=D), torch.tensor([0])
    residual = torch.tensor([[0.5, -1.0]], dtype=D)
    net = Given(fraug_generator=residual, fraug_rtnet=residual)
    method = FRAug(ramp_rate=-math.log(0.3), **switch)  # exp(rate (0 - 1)) = 0.3
    made = method._embedding("batch", u, y, context(phase, width=2), net)
    assert made[0].tolist() == pytest.approx(expected, abs=1e-12)


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


@pytest.mark.parametrize("augment", ["learned", "generator", "rtnet", "laplace"])
def test_the_synthetic_loss_reaches_the_head_alone(augment):
    method = FRAug(augment=augment)
    plan = start(method).plan
    model = plan.model.train()
    x, y = SMALL.clients[0].train.x[:6].to(D), SMALL.clients[0].train.y[:6]
    net = Net(model)
    terms = method.loss(net.output(x), y, context(), net)
    assert set(terms) == {"task", "synthetic"}
    params = dict(model.named_parameters())
    for term, reached in (("synthetic", {"head"}), ("task", {"conv", "hidden", "head"})):
        grads = torch.autograd.grad(
            terms[term], list(params.values()), allow_unused=True, retain_graph=True
        )
        found = {n.split(".")[0] for n, g in zip(params, grads, strict=True) if g is not None}
        assert found == reached


@pytest.mark.parametrize(
    ("switch", "passes"),
    [
        ({}, [1, 1, 1]),
        ({"generator_distance": "l2"}, [1, 0, 1]),
        ({"generator_distance": "l2", "stream": "means"}, [1, 0, 0]),
        ({"augment": "generator"}, [1, 1]),
        ({"augment": "normal"}, [1]),
    ],
    ids=str,
)
def test_features_are_computed_only_where_a_phase_needs_them(switch, passes):
    method = FRAug(**switch)
    plan = start(method).plan
    model, seen = plan.model, []
    model.hidden.register_forward_hook(lambda module, inputs, z: seen.append(z.requires_grad))
    x, y = SMALL.clients[0].train.x[:6].to(D), SMALL.clients[0].train.y[:6]
    counted = []
    for phase in plan.phases:
        for name, param in model.named_parameters():
            param.requires_grad_(plan.scopes[name].group in phase.groups)
        net = Net(model)
        before = len(seen)
        method.loss(net.output(x), y, context(phase.name), net)
        counted.append(len(seen) - before)
    assert counted == passes
    assert seen == [True] + [False] * (sum(passes) - 1), "gradients reach features once in a step"


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
    plan = start(FRAug()).plan
    shares = {n: s.share for n, s in plan.scopes.items()}
    kept = {n for n, s in shares.items() if s == "kept"}
    assert {n for n in kept if n.startswith("conv")} == {n for n in shares if "conv.1." in n}
    assert all(n in kept for n in shares if n.startswith(("fraug_rtnet", "fraug_means")))
    shared = {n for n in shares if n.startswith("fraug_generator")} - kept
    assert shared == {n for n in shares if n.startswith("fraug_generator") and "linear" in n}
    assert set(shares.values()) == {"kept", "both"}
    assert not any(n.startswith("fraug") for n in plan.used), "predictions need no networks"
    run = start(FRAug(local_generator_norm=False, local_norm="none"))
    kept = set(run.plan.names("kept"))
    assert {n.split(".")[0] for n in kept} == {"fraug_rtnet", "fraug_means"}


def test_size_of_what_travels_of_the_generator():
    # (256 + 10) 512 + 512 + 512 * 512 + 512, without two norms of 2 * 512
    facts = Facts("classification", 10, (3, 32, 32), ("a",), width=512)
    for method, size in ((FRAug(), 399_360), (FRAug(local_generator_norm=False), 401_408)):
        model = method.build(nn.Module(), facts)
        owned, params = owners(model), dict(model.named_parameters())
        sent = [p.numel() for n, p in params.items() if method.scope(n, owned[n]).share == "both"]
        assert sum(sent) == size


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
    assert kept(FRAug(local_norm="no-shortcuts")) == {"bn1"}
    assert kept(FRAug(local_norm="none")) == set()


def test_class_means_are_the_clients_own():
    run = start(FRAug(), SHORT, fed=SMALL).play()
    a, b = (run.progress.kept[c]["model/fraug_means.means"] for c in "ab")
    assert a.abs().max() > 0 and b.abs().max() > 0 and (a - b).abs().max() > 1e-6
    assert run.progress.server.model["fraug_means.means"].abs().max() == 0.0


def test_without_embeddings_it_is_fedbn():
    a = start(FRAug(augment="none"), SHORT, fed=SMALL).play()
    b = start(fs.methods.FedBN(), SHORT, fed=SMALL).play()
    assert largest_difference(state(a), state(b)) < 1e-12


# -- clients of all kinds ------------------------------------------------------------------------


def test_clients_that_lack_classes_keep_zero_means_for_them():
    def of_classes(client: Client, *classes: int) -> Client:
        train = samples(12, key=7)
        chosen = torch.isin(train.y, torch.tensor(classes))
        return Client(
            client.name, Samples(train.x[chosen], train.y[chosen]), client.val, client.test
        )

    a, b = SMALL.clients
    fed = Federation("toy", (of_classes(a, 1), of_classes(b, 0, 2)), ("x", "y", "z"), source="")
    tensors = both(FRAug(), steps=3, fed=fed)
    assert all(torch.isfinite(t).all() for t in tensors.values())
    for client, present in (("a", [False, True, False]), ("b", [True, False, True])):
        means = tensors[f"kept/{client}/model/fraug_means.means"]
        assert (means.abs().amax(dim=1) > 0).tolist() == present


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_who_does_not_take_part_keeps_everything(engine):
    protocol = SHORT.replace(rounds=4, participation=2, reset_optimizer=False)
    run = start(FRAug(), protocol, engine=engine)
    names = [c.name for c in run.federation.clients]
    absences = 0
    before: dict[str, dict[str, torch.Tensor]] = {}

    def look(run, line):
        nonlocal absences, before
        now = {c: dict(run.progress.kept.get(c, {})) for c in names}
        for line in (x for x in run.lines if x["round"] == line["round"] and x["client"] in now):
            old, new = before.get(line["client"], {}), now[line["client"]]
            if line["loss"]:
                assert largest_difference(
                    {n: old.get(n, torch.zeros_like(t)) for n, t in new.items()}, new
                )
            else:
                absences += 1
                assert largest_difference(old, new) == 0.0
        before = now

    run.play(look)
    assert absences == 4, "one of three clients in each round"


def test_a_batch_of_one_is_refused_for_the_sake_of_the_attached_networks():
    def attempt(sizes: tuple[int, ...], batch: int) -> None:
        options: dict[str, Any] = {"device": "cpu", "engine": "loop", "warn": lambda message: None}
        protocol, model = SHORT.replace(batch=batch), lambda: ToyNet(norm=False)
        fs.Run(federation(sizes), FRAug(), protocol, model, **options)

    with pytest.raises(BadModel, match=r"norm 'fraug_generator\.hidden\.norm' .* batch of one"):
        attempt((5, 6), batch=1)
    with pytest.raises(BadData, match="client 'b' has one training sample"):
        attempt((5, 1), batch=4)


# -- switches ------------------------------------------------------------------------------------

TASK, SYNTHETIC, G, M = "task", "synthetic", "fraug_generator", "fraug_rtnet"
# which terms of a step's losses a switch changes; the others stay as they are to the last bit
EFFECTS: list[tuple[dict[str, Any], set[str]]] = [
    ({"alpha": 0.5}, {G}),
    ({"generator_distance": "l2"}, {G}),
    ({"generator_distance": "mean-cov"}, {G}),
    ({"cap": 0.0}, {G}),
    ({"beta": 0.5}, {M}),
    ({"rtnet_distance": "l2"}, {M}),
    ({"rtnet_distance": "mean-cov"}, {M}),
    ({"confusion": "non-saturating"}, {M}),
    ({"ramp": "gaussian"}, {TASK, SYNTHETIC}),
    ({"ramp": "hyperbolic"}, {TASK, SYNTHETIC}),
    ({"ramp": "half"}, {TASK, SYNTHETIC}),
    ({"ramp_rate": 0.3}, {TASK, SYNTHETIC}),
    ({"mixing": "sum"}, {TASK, SYNTHETIC}),
    ({"ramp_residual": "never"}, {SYNTHETIC}),
    ({"ramp_residual": "always"}, {M}),
    ({"means_rate": 0.9}, {SYNTHETIC, M}),
    ({"means_ramp": True}, {SYNTHETIC, M}),
    ({"means_rule": "warm"}, {SYNTHETIC, M}),
    ({"means_rule": "shrinking"}, {SYNTHETIC, M}),
    ({"stream": "batch"}, {SYNTHETIC, M}),
    ({"stream": "means"}, {SYNTHETIC, M}),
    ({"noise": "uniform"}, {SYNTHETIC, G, M}),
    ({"noise_width": 3}, {SYNTHETIC, G, M}),
    ({"rtnet_norm": False}, {SYNTHETIC, M}),
    ({"augment": "generator"}, {SYNTHETIC, M}),
    ({"augment": "rtnet"}, {SYNTHETIC, G, M}),
    ({"augment": "normal"}, {SYNTHETIC, G, M}),
    ({"augment": "none"}, {TASK, SYNTHETIC, G, M}),
    # what learns how fast, what travels, and inputs: see the tests of phases, scopes and batches
    ({"lr_generator": 0.0}, set()),
    ({"lr_rtnet": 0.0}, set()),
    ({"local_norm": "no-shortcuts"}, set()),
    ({"local_norm": "none"}, set()),
    ({"local_generator_norm": False}, set()),
    ({"input_noise": 0.1}, set()),
    ({"spread": 0.5}, set()),
]
# with these the model has other tensors
ABLATIONS: list[dict[str, Any]] = [
    {"rtnet_norm": False},
    {"noise_width": 3},
    {"augment": "rtnet", "stream": "batch"},
    {"augment": "generator", "stream": "means"},
    {"augment": "uniform"},
    {"augment": "laplace"},
    {"augment": "normal", "local_norm": "none"},
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
        "means_rule": "warm",
        "confusion": "non-saturating",
        "ramp_residual": "always",
    },
    {
        "generator_distance": "mean-cov",
        "rtnet_distance": "l2",
        "ramp": "hyperbolic",
        "ramp_residual": "never",
        "means_ramp": True,
        "means_rule": "shrinking",
        "input_noise": 0.1,
        "augment": "generator",
    },
    {"ramp": "half", "augment": "rtnet"},
]


def terms(method: FRAug) -> dict[str, float]:
    """The losses of one step on given tensors, phase by phase, nothing learnt in between."""
    plan = start(method, SHORT).plan
    if hasattr(plan.model, "fraug_means"):
        plan.model.fraug_means.means.fill_(0.5)
    plan.model.hidden[1].p = 0.0  # dropout
    chosen = torch.tensor([0, 1, 3, 4])  # a batch without class 2
    train = SMALL.clients[0].train
    net, found = Net(plan.model), {}
    for phase in plan.phases:
        for path, module in plan.model.named_modules():
            module.training = plan.modes[path] in phase.training
        out = net.output(train.x[chosen].to(D))
        ctx = context(phase.name, round=1, rounds=4)
        found |= {n: t.item() for n, t in method.loss(out, train.y[chosen], ctx, net).items()}
    return found


@pytest.mark.parametrize(("switch", "changed"), EFFECTS, ids=[str(s) for s, _ in EFFECTS])
def test_a_switch_changes_what_it_says_and_nothing_else(switch, changed):
    default, found = terms(FRAug()), terms(FRAug(**switch))
    same = {n for n in default if n in found and found[n] == default[n]}
    assert set(default) == {TASK, SYNTHETIC, G, M} and set(default) - same == changed


def test_beyond_the_cap_the_generator_is_not_pushed():
    assert terms(FRAug(cap=0.0)) == terms(FRAug(alpha=0.0))


def learnt(method: Any, steps: int = 1, **options: Any) -> dict[str, torch.Tensor]:
    """What a short run learns; with this seed, second batches lack a class."""
    options.setdefault("seed", 1)
    options.setdefault("fed", SMALL)
    return state(start(method, SHORT.replace(steps=steps), **options).play())


def both(method: Any, steps: int = 1, **options: Any) -> dict[str, torch.Tensor]:
    """The same, after checking that both engines learn it."""
    loop = learnt(method, steps, **options)
    assert largest_difference(loop, learnt(method, steps, engine="stacked", **options)) < 1e-9
    return loop


@pytest.fixture(scope="module")
def default() -> dict[str, torch.Tensor]:
    return learnt(FRAug())


@pytest.mark.parametrize(
    "switch",
    [
        {"lr_generator": 0.0},
        {"lr_rtnet": 0.0},
        {"local_norm": "none"},
        {"local_generator_norm": False},
        {"input_noise": 0.1},
    ],
    ids=str,
)
def test_a_switch_outside_the_losses_changes_what_is_learnt(switch, default):
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
    expected = {
        "learned": {"fraug_generator", "fraug_rtnet", "fraug_means"},
        "generator": {"fraug_generator", "fraug_means"},
        "rtnet": {"fraug_rtnet", "fraug_means"},
    }.get(switch.get("augment", "learned"), set())
    assert names == expected
    assert (changed["head.weight"] - default["head.weight"]).abs().max() > 1e-7


def test_phases_follow_the_ablations():
    def names(**switch: Any) -> list[str]:
        return [p.name for p in FRAug(**switch).phases()]

    assert names() == ["model", "fraug_generator", "fraug_rtnet"]
    assert names(augment="rtnet") == ["model", "fraug_rtnet"]
    assert names(augment="generator") == ["model", "fraug_generator"]
    assert names(augment="normal") == names(augment="none") == ["model"]
    assert [p.lr for p in FRAug(lr_generator=0.3, lr_rtnet=0.4).phases()] == [None, 0.3, 0.4]


@pytest.mark.parametrize("kind", ["uniform", "laplace", "normal"])
def test_noise_on_embeddings_of_the_batch(kind):
    class Out:
        x = z = torch.ones(5, 8, dtype=D)

    def moved(spread: float) -> torch.Tensor:
        method = FRAug(augment=kind, spread=spread)
        [(made, base, label)] = method._made(Out, torch.arange(5) % 3, context(), Given())
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
    with pytest.raises(BadValue, match="augment is 'both': choose from learned"):
        FRAug(augment="both")
