"""FedAvg: the weighted mean, and the drift between two means.

On the two quadratics a round maps w to (q1 w + 1 + q2 (w - 1)) / 2, whose fixed point is
(1 - q2) / (2 - q1 - q2) = 0.670133, and not the optimum 0.75 of the sum.
"""

from __future__ import annotations

import pytest

import fedshift as fs
from fedshift.methods.fedavg import FedAvg
from tests.methods.quadratic import ENGINES, Quadratic, clients, path, run, w

Q1, Q2 = 0.9**5, 0.7**5


@pytest.mark.parametrize("engine", ENGINES)
def test_two_rounds_and_the_fixed_point(engine):
    first, second = path(FedAvg(), engine, 2)
    assert first == pytest.approx((1 - Q2) / 2, abs=1e-12) == pytest.approx(0.415965, abs=1e-6)
    assert second == pytest.approx((Q1 * first + 1 + Q2 * (first - 1)) / 2, abs=1e-12)
    assert w(run(FedAvg(), engine, 30)) == pytest.approx(0.670133, abs=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("weights", "mean"), [("samples", 0.75), ("uniform", 0.5)])
def test_the_mean_of_0_and_1_with_1_and_3_samples(engine, weights, mean):
    """One step of rate 1 on a curvature of 1 lands on the target, so the clients hold 0 and 1."""
    fed = clients((1, 0, 0), (1, 1, 0), sizes=(1, 3))
    assert w(run(FedAvg(), engine, fed=fed, steps=1, lr=1, weights=weights)) == mean


@pytest.mark.parametrize("engine", ENGINES)
def test_one_step_weighted_by_samples_is_the_centralised_step(engine):
    """With T = 1: w - 0.1 (1/4 a1 (w - b1) + 3/4 a2 (w - b2)) = 2 + 0.1 (-0.5 - 2.25)."""
    fed = clients(*((1, 0, 0), (3, 1, 0)), sizes=(1, 3))
    ours = run(FedAvg(), engine, fed=fed, start=2.0, steps=1, weights="samples")
    whole = run(fs.methods.Centralized(), "loop", fed=fed, start=2.0, steps=1, batch=4)
    assert w(ours) == pytest.approx(2 - 0.1 * (0.5 + 2.25), abs=1e-12)
    assert w(whole) == pytest.approx(w(ours), abs=1e-12)


def test_without_a_method_beside_it_the_name_is_its_own():
    assert fs.Composed.of(FedAvg()).name == "fedavg"
    assert (Quadratic() + FedAvg()).name == "quadratic"
