"""RSC: how many features stay, which samples are muted, and every switch.

Of 9 distinct slopes the quantile 2/3 lies at place 16/3, counted from 0: the 6 lowest are kept. Of
512 it lies at 340.67, so 341 are.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedshift as fs
from fedshift.federation import Facts
from fedshift.methods.rsc import RSC, lowest
from fedshift.models import Staged
from fedshift.net import Net
from tests.methods.quadratic import ENGINES
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import ToyNet, federation, largest_difference

D = torch.float64


@pytest.mark.parametrize(
    ("count", "drop", "kept"),
    [(9, 1 / 3, 6), (512, 1 / 3, 341), (9, 0.0, 9), (4, 1 / 3, 3), (9, 1.0, 1), (1, 0.5, 1)],
)
def test_how_many_stay(count, drop, kept):
    values = torch.randperm(count, generator=torch.Generator().manual_seed(0)).to(D)[None]
    found = lowest(values, drop)
    assert found.sum() == kept
    assert set(values[found].tolist()) == set(range(kept)), "the lowest"
    quantile = values.quantile(1 - drop, dim=1, keepdim=True)
    assert count == 4 or torch.equal(found, values <= quantile)


class Linear(Staged):
    """Three features, two logits (3 z_0 + z_1, z_2)."""

    stages = ("body",)

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Identity()
        self.head = nn.Linear(3, 2, bias=False)
        self.head.weight.data = torch.tensor([[3.0, 1.0, 0.0], [0.0, 0.0, 1.0]])


class Moment:
    """What the loss looks at beside the net."""

    phase = "model"
    facts = Facts("classification", 2, (3,), ("a",))


Z = torch.tensor([[1.0, 1, 1], [0.1, 1, 1], [1, 1, 2]], dtype=D)
Y = torch.tensor([0, 0, 1])


def test_the_mask_by_hand():
    """Slopes are (3, 1, 0) for class 0 and (0, 0, 1) for class 1: with a third, one is muted each.

    Muting it takes 3 off logit 0 of the first sample, 0.3 of the second; 2 off logit 1 of the
    third. Probabilities of the labels fall by 0.953 - 0.5, 0.574 - 0.5 and 0.119 - 0.018.
    """
    net = Net(Linear().double())
    label = F.one_hot(Y, 2).to(D)
    every = RSC(batch_share=1.0).mask(net, Z, label)
    # the sample that loses least stays whole: a share of 1 leaves one, as the least quantile
    assert every.tolist() == [[0, 1, 1], [1, 1, 1], [1, 1, 0]]
    third = RSC().mask(net, Z, label)
    assert third.tolist() == [[0, 1, 1], [1, 1, 1], [1, 1, 1]]
    half = RSC(features=0.5, batch_share=1.0).mask(net, Z, label)
    assert half.tolist() == [[0, 1, 1], [1, 1, 1], [1, 1, 0]]


def test_the_loss_is_of_what_is_left_and_masks_have_no_gradient():
    model = Linear().double()
    z = Z.clone().requires_grad_()
    net = Net(model)
    out = net.output(z)
    terms = RSC().loss(out, Y, Moment, net)
    left = z * torch.tensor([[0.0, 1, 1], [1, 1, 1], [1, 1, 1]], dtype=D)
    wanted = F.cross_entropy(model.head(left), Y)
    assert torch.allclose(terms["task"], wanted)
    leaves = [z, model.head.weight]
    for one, other in zip(
        torch.autograd.grad(terms["task"], leaves), torch.autograd.grad(wanted, leaves)
    ):
        assert torch.allclose(one, other, atol=1e-12)
    soft = RSC().loss(net.output(z), F.one_hot(Y, 2).to(D), Moment, net)
    assert torch.allclose(soft["task"], wanted)


@pytest.mark.parametrize("settings", [{"features": 0.0}, {"batch_share": 0.0}])
def test_where_nothing_is_muted_it_is_fedavg(settings):
    one, plain = (start(m).play().progress.server.model for m in (RSC(**settings), "fedavg"))
    assert largest_difference(one, plain) < 1e-12


@pytest.mark.parametrize("settings", [{}, {"features": 0.7}, {"batch_share": 1.0}])
def test_switches_agree_on_both_engines(settings):
    protocol = PROTOCOL.replace(participation=2)
    runs = [start(RSC(**settings), protocol, engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
    plain = start("fedavg", protocol).play().progress.server.model
    assert largest_difference(plain, runs[0].progress.server.model) > 1e-6


def test_a_head_with_batch_norm_moves_once_a_step():
    class Normed(ToyNet):
        def __init__(self):
            super().__init__(dropout=0.0)
            self.head = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 3))

    for engine in ENGINES:
        run = fs.Run(
            federation(),
            RSC(),
            PROTOCOL.replace(rounds=1, steps=3),
            Normed,
            dtype="float64",
            engine=engine,
        ).play()
        assert run.progress.server.model["head.0.num_batches_tracked"] == 3


@pytest.mark.parametrize("other", ["mixup", "feddg-ga", "fedbn"])
def test_with_other_methods(other):
    runs = [start(f"rsc+{other}", engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
