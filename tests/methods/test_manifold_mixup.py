"""Manifold Mixup: one place, one lam and one permutation a batch, and the labels mixed alike."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from fedshift import keys, task
from fedshift.errors import UnknownName
from fedshift.methods.manifold_mixup import ManifoldMixup, mixing
from fedshift.methods.mixup import mix, soft
from fedshift.net import Net, tensors_of
from tests.methods.test_battery import PROTOCOL, start
from tests.toys import ToyNet

SHAPES = {"conv": (4, 3, 3), "hidden": (8,)}


def facts() -> SimpleNamespace:
    return SimpleNamespace(stage_shapes=SHAPES, classes=3, task="classification")


def step(key: int) -> SimpleNamespace:
    lr = torch.tensor(0.1, dtype=torch.float64)
    return SimpleNamespace(key=keys.as_tensor(key), lr=lr, facts=facts(), phase="model")


def network() -> Net:
    torch.manual_seed(0)
    return Net(ToyNet(dropout=0.0, norm=False).double())


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-1, 2, 6 * 36, dtype=torch.float64).sin().reshape(6, 1, 6, 6)
    return x, torch.tensor([0, 1, 2, 0, 1, 2])


def loss(method: ManifoldMixup, key: int, net: Net) -> torch.Tensor:
    x, y = batch()
    return method.loss(net.output(x), y, step(key), net)["task"]


def test_at_the_input_it_is_mixup():
    """The loss of Mixup's own batch, made from the same lam and partners."""
    net, (x, y) = network(), batch()
    for key in range(5):
        here = keys.as_tensor(key)
        lam = keys.beta(keys.fold_in(here, "lambda"), 2.0, 2.0)
        partner = keys.permutation(keys.fold_in(here, "partner"), 6)
        mixed_x, mixed_y = mix(x, soft(y, 3, x), lam, partner)
        expected = task.loss("classification", net(mixed_x), mixed_y)
        assert torch.allclose(loss(ManifoldMixup(layers="input"), key, net), expected, atol=1e-14)


@pytest.mark.parametrize("place", ["conv", "hidden"])
def test_at_a_stage_it_is_what_the_rest_makes_of_the_mixture(place):
    net, (x, y) = network(), batch()
    model = net._model
    for key in range(5):
        here = keys.as_tensor(key)
        lam = keys.beta(keys.fold_in(here, "lambda"), 2.0, 2.0)
        partner = keys.permutation(keys.fold_in(here, "partner"), 6)
        h = model.conv(x)
        if place == "hidden":
            h = model.hidden(h)
        h = lam * h + (1 - lam) * h[partner]
        logits = model.head(h if place == "hidden" else model.hidden(h))
        expected = lam * F.cross_entropy(logits, y) + (1 - lam) * F.cross_entropy(
            logits, y[partner]
        )
        assert torch.allclose(loss(ManifoldMixup(layers=place), key, net), expected, atol=1e-14)


def test_one_place_is_drawn_for_each_step_and_all_are():
    net = network()
    alone = {
        layers: [loss(ManifoldMixup(layers=layers), key, net).item() for key in range(60)]
        for layers in ("input", "conv", "hidden")
    }
    drawn = [loss(ManifoldMixup(), key, net).item() for key in range(60)]
    where = [[name for name in alone if alone[name][k] == drawn[k]] for k in range(60)]
    assert all(len(names) == 1 for names in where)
    counts = [sum(names[0] == place for names in where) for place in alone]
    # Binomial(60, 1/3) is 20 with standard deviation 3.65
    assert all(6 < count < 34 for count in counts), counts


def test_places_by_words():
    names = {
        text: ManifoldMixup(layers=text)._places(facts())
        for text in ("all", "input", "input, 1", "maps", "hidden")
    }
    assert names == {
        "all": ("input", "conv", "hidden"),
        "input": ("input",),
        "input, 1": ("input", "conv"),
        "maps": ("conv",),
        "hidden": ("hidden",),
    }
    with pytest.raises(UnknownName, match="unknown stage 'cnv': did you mean conv"):
        start(ManifoldMixup(layers="input,cnv"))


def test_weight_1_is_the_identity_to_the_bit():
    x = torch.randn(4, 3)
    change = mixing(torch.tensor(1.0, dtype=torch.float64), torch.tensor([3, 2, 1, 0]))
    assert torch.equal(change(x), x) and change(x).dtype == x.dtype


def test_running_statistics_move_once_in_a_step():
    run = start(ManifoldMixup(), PROTOCOL.replace(rounds=1)).play()
    # clients a, b, c take 4, 2 and 3 steps; counters take the largest
    assert run.progress.server.model["conv.1.num_batches_tracked"] == 4
    assert set(run.progress.server.model) == set(tensors_of(ToyNet()))
