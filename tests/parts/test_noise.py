"""Noise by name: mean, spread and tails, the same for a client wherever it runs."""

from __future__ import annotations

import pytest
import torch

from fedshift import keys
from fedshift.parts.noise import NOISES, perturbed

N = 40_000


@pytest.mark.parametrize(
    ("name", "variance", "kurtosis"), [("uniform", 1 / 3, 1.8), ("laplace", 2, 6), ("normal", 1, 3)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments(name, variance, kurtosis, dtype):
    x = NOISES[name](keys.as_tensor(3), (N,), dtype)
    assert x.dtype == dtype and torch.isfinite(x).all()
    assert x.mean().item() == pytest.approx(0.0, abs=0.03)
    assert x.var().item() == pytest.approx(variance, rel=0.05)
    assert ((x**4).mean() / x.var() ** 2).item() == pytest.approx(kurtosis, rel=0.15)


def test_uniform_stays_within_one():
    x = NOISES["uniform"](keys.as_tensor(3), (N,), torch.float32)
    assert -1.0 <= x.min() < -0.99 and 0.99 < x.max() < 1.0


@pytest.mark.parametrize("name", NOISES)
def test_streams_are_the_clients_own(name):
    both = torch.stack([keys.as_tensor(1), keys.as_tensor(2)])
    mapped = torch.vmap(lambda k: NOISES[name](k, (4,), torch.float64))(both)
    assert torch.equal(mapped[1], NOISES[name](keys.as_tensor(2), (4,), torch.float64))
    assert not torch.equal(mapped[0], mapped[1])


@pytest.mark.parametrize(
    ("name", "variance"), [("uniform", 1 / 12), ("laplace", 0.5), ("normal", 0.25)]
)
def test_scale_of_perturbations(name, variance):
    """At g = 1/2: g^2 / 3, 2 g^2, g^2."""
    x = torch.full((N,), 3.0, dtype=torch.float64)
    y = perturbed(x, name, 0.5, keys.as_tensor(7))
    assert y.mean().item() == pytest.approx(3.0, abs=0.02)
    assert y.var().item() == pytest.approx(variance, rel=0.05)
    assert torch.equal(perturbed(x, name, 0.0, keys.as_tensor(7)), x)
