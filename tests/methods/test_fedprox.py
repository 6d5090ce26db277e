"""FedProx: a local step on a/2 (w - b)^2 + mu/2 (w - w_t)^2 goes towards (a b + mu w_t) / (a + mu).

From w_t, 5 steps of rate 0.1 leave (1 - 0.1 (a + mu))^5 of the way to go. The fixed points of the
two quadratics follow: 0.670155 for mu = 0.01, 0.672945 for 1, 0.717881 for 10.
"""

from __future__ import annotations

import pytest

from fedshift import tree
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.fedbn import FedBN
from fedshift.methods.fedprox import FedProx
from fedshift.methods.local import Local
from tests.methods.quadratic import ENGINES, TWO, clients, run, w
from tests.methods.test_battery import start


def by_hand(mu: float, at: float) -> float:
    """One round."""
    found = []
    for a, b, _ in TWO:
        target = (a * b + mu * at) / (a + mu)
        found.append(target + (1 - 0.1 * (a + mu)) ** 5 * (at - target))
    return sum(found) / 2


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("mu", "fixed", "rounds"), [(0.01, 0.670155, 25), (1, 0.672945, 30), (10, 0.717881, 80)]
)
def test_fixed_points(engine, mu, fixed, rounds):
    assert w(run(FedProx(mu=mu), engine, 1, start=0.25)) == pytest.approx(
        by_hand(mu, 0.25), abs=1e-12
    )
    assert w(run(FedProx(mu=mu), engine, rounds)) == pytest.approx(fixed, abs=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_local_minimiser(engine):
    """0.5 (w - 1)^2 + 0.5 w^2, the pull being towards w_t = 0, has its minimum at 0.5."""
    played = run(FedProx(mu=1), engine, fed=clients((1, 1, 0)), steps=100, lr=0.3)
    assert w(played) == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_mu_0_is_fedavg_bit_for_bit(engine):
    ours, theirs = (
        start(m, engine=engine).play().progress.server.model for m in (FedProx(mu=0), FedAvg())
    )
    assert tree.digest(ours) == tree.digest(theirs)


def test_the_term_is_squared_and_counted():
    """On a flat loss the pull is mu (w - w_t): nothing moves, and the mean term is 0."""
    flat = run(FedProx(mu=5), "loop", fed=clients((0, 0, 0)), start=2.0)
    assert w(flat) == 2.0
    played = run(FedProx(mu=2), "loop", fed=clients((0, 0, 1)), steps=2)
    # w is 0, then -0.1: the terms are 0 and 2/2 * 0.01
    assert played.lines[-1]["loss"]["proximal"] == pytest.approx(0.005, abs=1e-12)


def test_what_clients_keep_is_not_pulled():
    together = start(FedProx(mu=1.0) + FedBN())
    assert set(together.plan.shared) == {
        n for n in dict(together.plan.model.named_parameters()) if not n.startswith("conv.1.")
    }
    alone = start(FedProx(mu=1.0) + Local()).play()
    assert tree.digest(alone.progress.kept["a"]) == tree.digest(
        start("local").play().progress.kept["a"]
    )
