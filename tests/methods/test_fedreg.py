"""FedReg: both projections by hand, and whole local steps against plain autograd.

d = (3, 1), g2 = (1, 1), g3 = (1, 0): <d, g2> / |g2|^2 = 2 leaves (1, -1), of which <., g3> = 1 is
taken too: (0, -1), orthogonal to g3. The other way round nothing is left of the second direction's
claim: g3 first takes 3 of d, g2 then 1/2.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import fedshift as fs
from fedshift import methods
from fedshift.methods.fedreg import FedReg, ascended, forgetting
from fedshift.net import Net
from tests.methods.quadratic import ENGINES
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import ToyNet, federation, largest_difference

SHORT = PROTOCOL.replace(rounds=1, steps=2)


def tree(*values: float) -> dict[str, torch.Tensor]:
    return {"a": torch.tensor(values[:1]), "b": torch.tensor(values[1:])}


def left(d, g2, g3) -> list[float]:
    taken = forgetting(d, g2, g3)
    return [float(d[n] - taken[n]) for n in d]


def test_projections():
    d, g2, g3 = tree(3, 1), tree(1, 1), tree(1, 0)
    assert left(d, g2, g3) == [0, -1]
    assert left(d, g3, g2) == [-0.5, 0.5]
    assert left(d, tree(-1, 0), tree(0, -2)) == [3, 1], "what falls is not taken out"
    assert left(d, tree(0, 0), tree(0, 0)) == [3, 1]
    assert left(d, tree(0, 0), tree(2, 0)) == [0, 1]


def test_ascents_go_up_the_loss_by_the_sign():
    net, x = Net(ToyNet(dropout=0.0, norm=False)), torch.rand(5, 1, 6, 6)
    y = torch.tensor([0, 1, 2, 0, 1])

    def losses(v):
        return F.cross_entropy(net(v), y, reduction="none")

    moved = ascended(net, x, y, 1e-3, 3)
    assert (losses(moved) > losses(x)).all()
    v = x.clone().requires_grad_()
    losses(v).sum().backward()
    assert torch.equal(ascended(net, x, y, 0.5, 1), x + 0.5 * v.grad.sign())
    assert (moved - x).abs().max() <= 3.001e-3


def toy() -> ToyNet:
    return ToyNet(dropout=0.0, norm=False)


def play(method, engine, rounds=1, sizes=(12, 12), **protocol) -> fs.Run:
    """Full batches, so that the order of samples does not matter."""
    options = {"steps": 3, "batch": 12, "lr": 0.5, **protocol}
    return fs.Run(
        federation(sizes),
        method,
        PROTOCOL.replace(rounds=rounds, **options),
        toy,
        dtype="float64",
        device="cpu",
        engine=engine,
        workers=1,
        warn=lambda message: None,
    )


def by_hand(method: FedReg, run: fs.Run, client: fs.Client, steps: int, lr: float):
    """The client's tensors after a trip, and how much was taken out in it."""
    names = [n for n, _ in run.plan.model.named_parameters()]
    received = [run.progress.server.model[n].clone() for n in names]
    model, x, y = toy().double(), client.train.x, client.train.y

    def grad(at, inputs, target):
        tensors = [t.clone().requires_grad_() for t in at]
        logits = torch.func.functional_call(model, dict(zip(names, tensors)), (inputs,))
        return torch.autograd.grad(F.cross_entropy(logits, target), tensors)

    def flat(parts):
        return torch.cat([p.reshape(-1) for p in parts])

    def mixed(w, share):
        return [share * a + (1 - share) * b for a, b in zip(w, received)]

    net = Net(model, dict(zip(names, received)))
    x_s = ascended(net, x, y, method.eta_s, method.ascents)
    x_p = ascended(net, x, y, method.eta_p, method.ascents)
    s = net(x_s).softmax(dim=1).detach()
    w, taken = received, 0.0
    for _ in range(steps):
        w = [p - lr * g for p, g in zip(w, grad(mixed(w, method.gamma), x, y))]
        q = mixed(w, method.beta)
        g2, g3 = grad(q, x_s, s), grad(q, x_p, y)
        d = flat([a - b for a, b in zip(w, received)])
        a = max(0.0, float(d @ flat(g2) / flat(g2).square().sum()))
        rest = d - a * flat(g2)
        b = max(0.0, float(rest @ flat(g3) / flat(g3).square().sum()))
        w = [p - a * u - b * v for p, u, v in zip(w, g2, g3)]
        taken += a + b
    return w, taken


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_is_the_papers(engine):
    method = FedReg(gamma=0.4, beta=0.6, eta_s=0.3, eta_p=0.01, ascents=3)
    run = play(method, engine)
    each = [by_hand(method, run, c, steps=3, lr=0.5) for c in run.federation.clients]
    assert min(taken for _, taken in each) > 1e-3, "choose settings with something to take out"
    run.play()
    for k, (name, _) in enumerate(run.plan.model.named_parameters()):
        mean = sum(w[k] for w, _ in each) / 2
        assert (run.progress.server.model[name] - mean).abs().max() < 1e-12


def test_pseudo_data_come_in_turn():
    """Steps of 6 on 12 samples see the first half, the second, and the first again."""
    seen = []

    class Watched(FedReg):
        def loss(self, out, y, ctx, net):
            if ctx.phase == "fedreg":
                rows = (ctx.step * len(out.x) + torch.arange(len(out.x))) % ctx.samples
                seen.append(ctx.fixed["y"][rows].tolist())
            return super().loss(out, y, ctx, net)

    run = play(Watched(ascents=1), "loop", sizes=(12,), batch=6).play()
    y = run.federation["a"].train.y.tolist()
    assert seen == [y[:6], y[6:], y[:6]]


@pytest.mark.parametrize("engine", ENGINES)
def test_logs_tell_the_loss_on_pseudo_data(engine):
    """At a rate of next to nothing it is the entropy of the received model there."""
    run = play(FedReg(ascents=1), engine, lr=1e-15, sizes=(12,), steps=1)
    model, client = run.progress.server.model, run.federation["a"]
    net = Net(toy().double(), {n: t.clone() for n, t in model.items()})
    p = net(ascended(net, client.train.x, client.train.y, 0.1, 1)).softmax(dim=1)
    told = run.play().lines[0]["loss"]["pseudo"]
    assert told == pytest.approx(-(p * p.log()).sum(dim=1).mean().item(), abs=1e-9)


def test_a_rate_of_nothing_takes_nothing():
    run = play(FedReg(ascents=1), "loop", lr=0.0)
    before = {n: t.clone() for n, t in run.progress.server.model.items()}
    assert largest_difference(before, run.play().progress.server.model) == 0


@pytest.mark.parametrize("other", ["mixup", "fedbn", "partialfed"])
def test_compositions_agree_on_both_engines(other):
    beside = methods.make(other) + FedReg(ascents=2)
    runs = [start(beside, SHORT, engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
    assert "pseudo" in runs[0].lines[-1]["loss"]
