"""SCAFFOLD: round by round on the two quadratics.

From zero variates round 1 is FedAvg's (0.415965). With eta = 0.1 and T = 5, c_k becomes
(w_t - w_k) / 0.5: 0 and -0.83193 / 0.5 = -1.66386, and c their mean. A local trip then runs on
a (w - b) + c - c_k, that is towards b - (c - c_k) / a.
"""

from __future__ import annotations

import pytest

from fedshift import methods
from fedshift.errors import CannotCombine
from fedshift.methods.scaffold import Scaffold
from tests.methods.quadratic import ENGINES, TWO, W, clients, path, run, w
from tests.methods.test_battery import PROTOCOL as TOY
from tests.methods.test_battery import start


def variates(played) -> tuple[float, list[float]]:
    """c, and c_k of every client."""
    c = played.progress.server.methods["scaffold"].tensors[W].item()
    return c, [k[f"scaffold/{W}"].item() for k in played.progress.kept.values()]


@pytest.mark.parametrize("engine", ENGINES)
def test_three_rounds_and_the_fixed_point(engine):
    assert path(Scaffold(), engine, 3) == pytest.approx([0.415965, 0.628723, 0.715025], abs=1e-6)
    assert w(run(Scaffold(), engine, 60)) == pytest.approx(0.75, abs=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_variates_after_the_first_round(engine):
    c, own = variates(run(Scaffold(), engine))
    assert c == pytest.approx(-0.83193, abs=1e-9)
    assert own == pytest.approx([0, -1.66386], abs=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_each_client_divides_by_its_own_steps(engine):
    """1, 2 and 4 samples make as many steps; c_k is then the mean gradient along the way."""
    losses = (*TWO, (2.0, -1.0, 0.5))
    fed = clients(*losses, sizes=(1, 2, 4))
    at, c, own = 0.0, 0.0, [0.0, 0.0, 0.0]
    for _ in range(3):
        ends, changes = [], []
        for k, ((a, b, slope), steps) in enumerate(zip(losses, (1, 2, 4))):
            y, gradients = at, []
            for _ in range(steps):
                gradients.append(a * (y - b) + slope)
                y -= 0.1 * (gradients[-1] + c - own[k])
            ends.append(y)
            changes.append(sum(gradients) / steps - own[k])
        at, c = sum(ends) / 3, c + sum(changes) / 3
        own = [old + d for old, d in zip(own, changes)]
    played = run(Scaffold(), engine, 3, fed=fed, steps=0, epochs=1)
    assert w(played) == pytest.approx(at, abs=1e-12)
    assert variates(played)[0] == pytest.approx(c, abs=1e-12)
    assert variates(played)[1] == pytest.approx(own, abs=1e-12)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_c_stays_the_mean_of_all_c_k(weights):
    """Also when 2 of 3 take part, since c moves by 2/3 of their mean change."""
    protocol = TOY.replace(rounds=4, participation=2, weights=weights)
    played = start("scaffold", protocol).play()
    c = played.progress.server.methods["scaffold"].tensors
    assert set(c) == set(played.plan.shared)
    for name, tensor in c.items():
        mean = sum(k[f"scaffold/{name}"] for k in played.progress.kept.values()) / 3
        assert (tensor - mean).abs().max() < 1e-12
    assert max(t.abs().max() for t in c.values()) > 1e-3


def test_the_rate_is_the_one_that_was_used():
    """With a rate that halves every round, c_k is still the mean gradient: here 1, always."""
    fed = clients((0, 0, 1), (0, 0, 1))
    played = run(Scaffold(), "loop", 3, fed=fed, schedule="exponential", decay=0.5)
    assert variates(played) == (pytest.approx(1), [pytest.approx(1)] * 2)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_does_not_blow_the_variates_up(nesterov):
    """On slopes of 1 and 3 the mean gradients are 1 and 3, however far momentum carries."""
    fed = clients((0, 0, 1), (0, 0, 3))
    played = run(Scaffold(), "loop", 3, fed=fed, momentum=0.9, nesterov=nesterov)
    assert variates(played) == (pytest.approx(2), pytest.approx([1, 3]))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_server_rate(engine):
    assert w(run(Scaffold(lr=0.5), engine)) == pytest.approx(0.415965 / 2, abs=1e-9)


def test_twice_the_model_travels():
    line = run(Scaffold(), "loop").lines[-1]
    assert (line["bytes_up"], line["bytes_down"]) == (2 * 2 * 8, 2 * 2 * 8)  # 2 clients, float64


def test_there_is_one_server_step():
    with pytest.raises(
        CannotCombine, match="'scaffold' and 'fedavgm' both replace the server's step"
    ):
        methods.make("scaffold+fedavgm")
