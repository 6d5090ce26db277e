"""Mixup: lam x + (1 - lam) x[perm] with one lam and one permutation a batch, labels likewise."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch.nn import functional as F

from fedshift import keys, task
from fedshift.method import Method
from fedshift.methods.mixup import Mixup, mix, soft
from tests.methods.test_battery import start

SEEN: list[tuple[torch.Tensor, torch.Tensor]] = []


@dataclass(frozen=True)
class Spy(Method):
    """Writes down what reaches the network (in the loop engine)."""

    name: ClassVar[str] = "spy"

    def loss(self, out, y, ctx, net):
        SEEN.append((out.x.clone(), y.clone()))
        return {}


def ctx(key: int, classes: int = 8) -> SimpleNamespace:
    return SimpleNamespace(key=keys.as_tensor(key), facts=SimpleNamespace(classes=classes))


def drawn(key: int, alpha: float = 0.4) -> tuple[torch.Tensor, torch.Tensor]:
    """The mixing matrix of a step, read off a batch whose samples are the unit vectors."""
    x, y = torch.eye(8, dtype=torch.float64), torch.arange(8)
    return Mixup(alpha=alpha).batch(x, y, ctx(key))


def test_one_lambda_and_one_permutation_a_batch():
    off_diagonal = 0
    for key in range(30):
        x, y = drawn(key)
        assert torch.equal(x, y), "labels are mixed as samples are"
        assert torch.allclose(x.sum(0), torch.ones(8, dtype=torch.float64)), (
            "partners are a permutation"
        )
        moved = x.diagonal() < 1 - 1e-12
        assert x.diagonal()[moved].unique().numel() <= 1, "one lambda"
        off_diagonal += int(moved.sum())
    assert off_diagonal > 100


def test_steps_draw_anew_from_beta():
    """Beta(a, a) has mean 1/2 and variance 1 / (4 (2 a + 1)): 0.178571 for a = 0.2."""
    key = keys.fold_in(keys.as_tensor(3), torch.arange(4000))
    x, _ = torch.vmap(
        lambda k: Mixup(alpha=0.2).batch(
            torch.eye(2).double(),
            torch.arange(2),
            SimpleNamespace(key=k, facts=SimpleNamespace(classes=2)),
        )
    )(key)
    swapped = x[:, 0, 0] < 1  # otherwise the permutation was the identity, or lambda 1
    lam = x[swapped, 0, 0]
    # standard errors with about 2000 of them: 0.0094 and 0.0020
    assert lam.numel() > 1500
    assert lam.mean().item() == pytest.approx(0.5, abs=0.04)
    assert lam.var().item() == pytest.approx(0.178571, abs=0.01)


def test_lambda_1_is_the_identity():
    x, y = torch.rand(5, 2), soft(torch.arange(5), 5, torch.rand(1))
    mixed = mix(x, y, torch.tensor(1.0), torch.tensor([1, 2, 3, 4, 0]))
    assert torch.equal(mixed[0], x) and torch.equal(mixed[1], y)
    half = mix(x, y, torch.tensor(0.25), torch.tensor([1, 2, 3, 4, 0]))
    assert torch.allclose(half[0][0], 0.25 * x[0] + 0.75 * x[1])


def test_the_loss_is_linear_in_the_labels():
    logits = torch.randn(6, 3, dtype=torch.float64)
    y, partner = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([5, 3, 0, 1, 2, 4])
    _, mixed = mix(logits, soft(y, 3, logits), torch.tensor(0.3, dtype=torch.float64), partner)
    by_parts = 0.3 * F.cross_entropy(logits, y) + 0.7 * F.cross_entropy(logits, y[partner])
    assert torch.allclose(task.loss("classification", logits, mixed), by_parts, atol=1e-14, rtol=0)


def test_masks_are_mixed_too():
    y = torch.tensor([[[0, 1], [1, 1]], [[2, 0], [0, 1]]])
    soft_y = soft(y, 3, torch.rand(1))
    assert soft_y.shape == (2, 3, 2, 2) and torch.equal(soft_y.argmax(1), y)
    _, mixed = mix(torch.rand(2, 1, 2, 2), soft_y, torch.tensor(0.25), torch.tensor([1, 0]))
    assert mixed[0, :, 0, 0].tolist() == [0.25, 0.0, 0.75]


def test_what_reaches_the_network():
    SEEN.clear()
    start(Mixup(alpha=1.0) + Spy()).play()
    assert len(SEEN) == 2 * (4 + 2 + 3), "a batch for every step of every client"
    lambdas = set()
    for x, y in SEEN:
        assert x.shape[0] == y.shape[0] == 5 and y.shape[1] == 3
        assert torch.allclose(y.sum(1), torch.ones(5, dtype=torch.float64))
        parts = {round(v, 9) for v in y.flatten().tolist()} - {0.0, 1.0}
        assert len(parts) <= 2 and sum(parts) == pytest.approx(1 if parts else 0), "one lambda"
        lambdas |= parts
    assert len(lambdas) > 20, "steps and clients draw their own"


@pytest.mark.parametrize("alpha", [1e-6, 0.2, 50.0])
def test_sound_for_any_alpha(alpha):
    x, y = drawn(1, alpha)
    assert bool(torch.isfinite(x).all()) and bool(torch.isfinite(y).all())
