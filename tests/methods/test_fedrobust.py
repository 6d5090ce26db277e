"""FedRobust: the maximum of a linear loss by hand, one min-max step by plain autograd."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import fedshift as fs
from fedshift import methods
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.fedrobust import SHAPES, Affine, FedRobust, distance
from tests.methods.quadratic import ENGINES
from tests.methods.test_battery import PROTOCOL
from tests.toys import ToyNet, federation, largest_difference

ONE = PROTOCOL.replace(rounds=1, steps=1, batch=12)
FED = federation((12, 12))  # a step sees all of a client's data


def plain() -> ToyNet:
    return ToyNet(dropout=0.0)


def test_the_maximum_of_a_linear_loss():
    """L = u (x + delta) at x = 0 with lambda = 2, u = (1, 2): delta = u / (2 lambda), L = 0.625."""
    layer = Affine((2,), "diagonal").double()
    u = torch.tensor([1.0, 2.0], dtype=torch.float64)
    for _ in range(200):
        gain = u @ layer(torch.zeros(1, 2).double())[0] - 2.0 * distance(layer.turn, layer.shift)
        grads = torch.autograd.grad(gain, (layer.turn, layer.shift))
        for p, g in zip(layer.parameters(), grads):
            p.data += 0.1 * g
    assert layer.shift.tolist() == pytest.approx([0.25, 0.5], abs=1e-12)
    assert not layer.turn.any(), "x = 0 says nothing of Lambda"
    assert gain.item() == pytest.approx(0.625, abs=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_affine_change_is_lambda_x_plus_delta(shape):
    layer = Affine((2, 3, 3), shape).double()
    torch.manual_seed(2)
    for p in layer.parameters():
        p.data.normal_()
    x = torch.randn(4, 2, 3, 3, dtype=torch.float64)
    if shape == "channel":
        turned = torch.einsum("dc,bchw->bdhw", torch.eye(2) + layer.turn, x)
        expected = turned + layer.shift[:, None, None]
    elif shape == "diagonal":
        expected = (1 + layer.turn) * x + layer.shift
    else:
        expected = x.flatten(1) @ (torch.eye(18) + layer.turn).T + layer.shift
    assert torch.allclose(layer(x), expected.reshape(x.shape))
    assert torch.equal(layer.eval()(x), x)


def played(method=None, engine="loop", **protocol) -> fs.Run:
    return fs.Run(
        FED,
        FedRobust() if method is None else method,
        ONE.replace(**protocol),
        plain,
        dtype="float64",
        device="cpu",
        engine=engine,
        workers=1,
    ).play()


def by_hand(client: str, steps: int, penalty: float, ascent: float, lr: float = 0.1):
    """The model, Lambda - I and delta of a client after some steps, all of its data in each."""
    model = plain().double()
    start = fs.Run(FED, FedAvg(), ONE, plain, dtype="float64", device="cpu").progress.server.model
    names = [n for n, _ in model.named_parameters()]
    w = {n: start[n].clone() for n in names}
    turn, shift = torch.zeros(1, 1).double(), torch.zeros(1).double()
    x, y = FED[client].train.x, FED[client].train.y
    for _ in range(steps):
        leaves = [t.requires_grad_() for t in (*w.values(), turn, shift)]
        buffers = {n: b.clone() for n, b in model.named_buffers()}
        logits = torch.func.functional_call(model, {**w, **buffers}, x + turn[0, 0] * x + shift)
        loss = F.cross_entropy(logits, y)
        down = torch.autograd.grad(loss, leaves[:-2], retain_graph=True)
        up = torch.autograd.grad(loss - penalty * (turn**2 + shift**2).sum(), leaves[-2:])
        w = {n: (t - lr * g).detach() for (n, t), g in zip(w.items(), down)}
        turn, shift = (
            (t + lr * ascent * g).detach() for t, g in zip((turn, shift), up, strict=True)
        )
    return w, turn, shift


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("penalty", "ascent"), [(1.0, 1.0), (2.0, 0.5)])
def test_steps_go_down_and_up_at_once(engine, penalty, ascent):
    run = played(FedRobust(penalty=penalty, ascent=ascent), engine, steps=3)
    ends = {}
    for client in "ab":
        w, turn, shift = by_hand(client, 3, penalty, ascent)
        kept = run.progress.kept[client]
        assert torch.allclose(kept["model/fedrobust_affine.turn"], turn, atol=1e-12)
        assert torch.allclose(kept["model/fedrobust_affine.shift"], shift, atol=1e-12)
        assert shift.abs() > 1e-4
        ends[client] = w
    for name in ends["a"]:
        mean = (ends["a"][name] + ends["b"][name]) / 2
        assert torch.allclose(run.progress.server.model[name], mean, atol=1e-12)


def test_the_first_step_is_fedavgs_and_statistics_move_once():
    runs = [played(m).progress.server.model for m in (FedRobust(), FedAvg())]
    shared = [{n: t for n, t in r.items() if "fedrobust" not in n} for r in runs]
    assert largest_difference(*shared) < 1e-12
    assert shared[0]["conv.1.num_batches_tracked"] == 1


def test_the_change_goes_on_from_round_to_round_and_is_never_sent():
    two, once = played(rounds=2), played()
    name = "model/fedrobust_affine.shift"
    assert two.progress.kept["a"][name].abs() > once.progress.kept["a"][name].abs()
    assert not two.progress.server.model["fedrobust_affine.shift"].any()
    assert not [n for n in two.plan.up + two.plan.down if "fedrobust" in n]


def test_a_large_penalty_is_fedavg():
    """With the rate of ascent so small that it does not overshoot: delta stays below g / (2 l)."""
    runs = [
        played(m, steps=3).progress.server.model
        for m in (FedRobust(penalty=1e6, ascent=1e-6), FedAvg())
    ]
    shared = [{n: t for n, t in r.items() if "fedrobust" not in n} for r in runs]
    assert largest_difference(*shared) < 1e-6


@pytest.mark.parametrize("other", ["fedbr", "feddecorr", "fraug"])
def test_beside_other_phases_and_terms(other):
    run = played(methods.make(other, {"fedbr.size": 6} if other == "fedbr" else {}) + FedRobust())
    assert run.progress.kept["a"]["model/fedrobust_affine.shift"].any()
    assert {"task", "fedrobust-gain"} <= set(run.lines[-1]["loss"])
