"""Embedding noise: the loss of features with noise of a known scale, for the head alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedshift import keys
from fedshift.methods.embedding_noise import EmbeddingNoise
from fedshift.models import Staged
from fedshift.net import Net
from tests.methods.test_battery import PROTOCOL, start
from tests.toys import largest_difference

Y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])


class Shown(nn.Linear):
    """A head that remembers what it saw."""

    def forward(self, z):
        self.seen = z
        return super().forward(z)


class Scaled(Staged):
    """Features that are inputs times a weight each."""

    stages = ("body",)

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 5, bias=False)
        self.body.weight.data = torch.diag(torch.tensor([0.0, 1.0, 1.0, 10.0, 100.0]))
        self.head = Shown(5, 3)


def step(method: EmbeddingNoise, key: int = 1, rows: int = 8):
    """The term of a step, the network, its clean features and what its head saw."""
    torch.manual_seed(0)
    model = Scaled().double()
    x = torch.randn(rows, 5, dtype=torch.float64)
    net = Net(model)
    ctx = SimpleNamespace(
        key=keys.as_tensor(key),
        phase="model",
        lr=torch.tensor(0.1, dtype=torch.float64),
        facts=SimpleNamespace(task="classification"),
    )
    y = Y.repeat(-(-rows // 8))[:rows]
    term = method.loss(net.output(x), y, ctx, net)["noisy"]
    return term, model, model.body(x), model.head.seen, y


@pytest.mark.parametrize(("noise", "variance"), [("uniform", 1 / 3), ("laplace", 2), ("normal", 1)])
def test_scale_in_units_of_the_batch_and_by_itself(noise, variance):
    for g in (0.5, 0.1):
        for unit in ("batch", "absolute"):
            method = EmbeddingNoise(noise=noise, spread=g, unit=unit)
            _, _, z, seen, _ = step(method, rows=4000)
            scale = z.std(0, correction=0) if unit == "batch" else torch.ones(5).double()
            expected = g * variance**0.5 * scale
            assert torch.allclose((seen - z).std(0), expected, rtol=0.08)


def test_a_feature_that_never_fires_stays_still():
    _, _, z, seen, _ = step(EmbeddingNoise())
    assert not z[:, 0].any() and not seen[:, 0].any()


def test_the_term_is_the_tasks_loss_of_noisy_features():
    term, model, _, seen, y = step(EmbeddingNoise(weight=0.25))
    logits = F.linear(seen, model.head.weight, model.head.bias)
    assert term.item() == pytest.approx(0.25 * F.cross_entropy(logits, y).item(), abs=1e-14)


@pytest.mark.parametrize("head_only", [True, False])
def test_whom_it_trains(head_only):
    term, model, *_ = step(EmbeddingNoise(head_only=head_only))
    term.backward()
    assert model.head.weight.grad.any()
    assert (model.body.weight.grad is not None) == (not head_only)


def test_steps_draw_anew():
    a, b, again = (step(EmbeddingNoise(), key)[3] for key in (1, 2, 1))
    assert torch.equal(a, again) and not torch.equal(a, b)


def test_each_noise_is_another_run():
    models = [
        start(EmbeddingNoise(noise=n), PROTOCOL.replace(steps=2)).play().progress.server.model
        for n in ("uniform", "laplace", "normal")
    ]
    assert largest_difference(models[0], models[1]) > 1e-6
    assert largest_difference(models[1], models[2]) > 1e-6
