"""Importances of parameters and means weighted by them, against numbers worked by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedshift.batches import Pool, View
from fedshift.data.augment import Pipeline
from fedshift.federation import Samples
from fedshift.models import Staged
from fedshift.net import Net
from fedshift.parts.importance import importances, shares
from tests.toys import ToyNet, samples

CPU = torch.device("cpu")


class Linear(Staged):
    """o = W x, all of it before the head."""

    stages = ("body",)

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 2, bias=False)
        self.head = nn.Identity()
        self.body.weight.data = torch.tensor([[1.0, -1.0], [0.5, 2.0]], dtype=torch.float64)


def view(x, padding=0):
    """The samples as a client hook sees them, with padding behind them."""
    pool = Pool.of([Samples(x, torch.zeros(len(x), dtype=torch.int64))], CPU)
    at = torch.arange(len(x) + padding)
    return View(pool, at.clamp_max(len(x) - 1), at < len(x), Pipeline(), torch.float64)


def measured(padding=0, **how):
    x = torch.tensor([[1.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    found = importances(Net(Linear()), view(x, padding), ("body.weight",), torch.tensor(2), **how)
    return found["body.weight"]


# o = Wx is (1, 0.5) for x = (1, 0) and (-1, 4.5) for x = (1, 2). The slope of ||o||^2 is 2 o x^T:
# ((2, 0), (1, 0)) and ((-2, -4), (9, 18)). Their sum is ((0, -4), (10, 18)), of which half the
# absolute values are taken; at (0, 0) the two samples cancel. By itself, ((2+2, 4), (10, 18)) / 2.
# The slope of ||o|| is o x^T / ||o||, with ||o|| = 1.118034 and 4.609772.
@pytest.mark.parametrize(
    "how, expected",
    [
        ({}, [[0, 2], [5, 9]]),
        ({"group": 1}, [[2, 2], [5, 9]]),
        ({"group": 1, "norm": "plain"}, [[0.555679, 0.216930], [0.711700, 0.976187]]),
    ],
)
@pytest.mark.parametrize("padding", [0, 3])
def test_one_linear_layer(how, expected, padding):
    wanted = torch.tensor(expected, dtype=torch.float64)
    assert torch.allclose(measured(padding, **how), wanted, atol=5e-7)


@pytest.mark.parametrize("group", [1, 3, 5, 16, 40])
@pytest.mark.parametrize("n", [7, 37])
def test_groups_that_share_a_pass_are_summed_apart(group, n):
    """Against plain autograd over the groups, whatever fits into one pass."""
    net, x = ToyNet(dropout=0.5).double(), samples(n, 4).x
    names = tuple(name for name, _ in net.named_parameters())
    with torch.no_grad():
        found = importances(Net(net), view(x, 5), names, torch.tensor(n), group=group)
    net.eval()
    wanted = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for part in x.split(group):
        grads = torch.autograd.grad(net(part).square().sum(), list(net.parameters()))
        for name, g in zip(names, grads, strict=True):
            wanted[name] += g.abs() / n
    for name in names:
        assert torch.allclose(found[name], wanted[name], atol=1e-12)


def test_what_lies_before_the_head_may_be_judged_by_the_features():
    net = ToyNet(dropout=0.0).double()
    x = samples(8, 3).x
    names = ("hidden.2.weight", "head.weight")
    how = {"names": names, "samples": torch.tensor(8), "group": 8}
    by_logits = importances(Net(net), view(x), **how)
    by_features = importances(Net(net), view(x), encoder="features", **how)
    net.eval()
    net.features(x).square().sum().backward()
    assert torch.allclose(by_features[names[0]], net.hidden[2].weight.grad.abs() / 8)
    assert not torch.allclose(by_logits[names[0]], by_features[names[0]])
    assert torch.allclose(by_logits[names[1]], by_features[names[1]])


def test_measuring_moves_nothing_and_leaves_no_gradient():
    net = ToyNet().double().train()
    before = {n: t.clone() for n, t in net.state_dict().items()}
    names = tuple(n for n, _ in net.named_parameters())
    importances(Net(net), view(samples(8, 3).x), names, torch.tensor(8))
    assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters()) and net.training


def test_a_parameter_that_the_output_does_not_feel_has_none():
    net = ToyNet().double()
    net.add_module("beside", nn.Linear(2, 2).double())
    found = importances(
        Net(net), view(samples(4, 3).x), ("beside.weight", "head.bias"), torch.tensor(4)
    )
    assert (found["beside.weight"] == 0).all() and (found["head.bias"] > 0).any()


THETA = torch.tensor([[1.0, 2.0, 3.0], [3.0, 0.0, -1.0], [5.0, 4.0, 1.0]], dtype=torch.float64)
OMEGA = torch.tensor([[1.0, 0.0, 2.0], [1.0, 0.0, 1.0], [2.0, 0.0, 1.0]], dtype=torch.float64)
UNIFORM = torch.full((3,), 1 / 3, dtype=torch.float64)


def test_three_clients_and_three_parameters():
    """Shares (1/4, 1/4, 1/2), none at all (so 1/3 each), and (1/2, 1/4, 1/4)."""
    each = shares(OMEGA, UNIFORM)
    assert each[:, 0].tolist() == [0.25, 0.25, 0.5] and each[:, 2].tolist() == [0.5, 0.25, 0.25]
    mean = (each * THETA).sum(dim=0)
    assert mean.tolist() == pytest.approx([3.5, 2.0, 1.5], abs=1e-12)
    # as the paper prints it, divided by the number of clients once more, models would shrink
    assert (mean / 3).tolist() == pytest.approx([1.166667, 0.666667, 0.5], abs=5e-7)


def test_equal_importances_give_the_plain_mean_and_dead_parameters_the_weighted_one():
    assert torch.allclose(
        (shares(torch.ones(3, 3).double(), UNIFORM) * THETA).sum(0), THETA.mean(0)
    )
    weights = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    assert (shares(OMEGA, weights) * THETA).sum(0)[1] == 1.0
