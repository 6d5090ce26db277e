"""Ramps at the rounds whose values are published or worked out."""

from __future__ import annotations

import pytest
import torch

from fedshift.parts.ramps import RAMPS


def at(name: str, round: int, rounds: int = 200, rate: float = 0.01) -> float:
    return RAMPS[name](torch.tensor(float(round), dtype=torch.float64), rounds, rate).item()


@pytest.mark.parametrize(
    ("rate", "values"),
    [
        (0.01, (0.135335, 0.223130, 0.367879, 0.990050)),
        (0.002, (0.670320, 0.740818, 0.818731, 0.998002)),
    ],
)
def test_exponential(rate, values):
    # exp(rate (r - 200)) at r = 0, 50, 100, 199
    found = [at("exponential", r, rate=rate) for r in (0, 50, 100, 199)]
    assert found == pytest.approx(values, abs=5e-7)


def test_gaussian():
    # exp(-5 (1 - t)^2) at t = 0, 1/4, 1/2, 1
    found = [at("gaussian", r) for r in (0, 50, 100, 200)]
    assert found == pytest.approx((0.006738, 0.060055, 0.286505, 1.0), abs=5e-7)
    assert at("gaussian", 250) == 1.0


def test_hyperbolic_and_half():
    assert [at("hyperbolic", r) for r in (0, 100, 300)] == pytest.approx((0.0, 0.5, 0.75))
    assert at("half", 7) == 0.5
