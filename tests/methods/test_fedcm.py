"""FedCM on two quadratics: a local step goes to w - 0.1 (alpha F'(w) + (1 - alpha) Delta).

The recursion below gives 0.070633, 0.195636, 0.355770 for alpha = 0.1, and the fixed points
0.670133 (alpha = 1, FedAvg's), 0.710907 (0.5) and 0.742427 (0.1); the optimum is 0.75.
"""

from __future__ import annotations

import pytest
import torch

from fedshift import methods, tree
from fedshift.methods.fedbr import HEAD, FedBR
from fedshift.methods.fedcm import FedCM
from tests.methods.quadratic import ENGINES, TWO, clients, path, run, w
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import largest_difference

SHORT = PROTOCOL.replace(steps=2)


def by_hand(alpha: float, rounds: int, steps=(5, 5), cold: str = "scaled") -> list[float]:
    """The global number after each round."""
    at, delta, seen = 0.0, 0.0, []
    for r in range(rounds):
        own = 1.0 if cold == "plain" and r == 0 else alpha
        ends = []
        for (a, b, _), count in zip(TWO, steps):
            here = at
            for _ in range(count):
                here -= 0.1 * (own * a * (here - b) + (1 - own) * delta)
            ends.append(here)
        delta = sum((at - end) / (0.1 * count) for end, count in zip(ends, steps)) / 2
        at = sum(ends) / 2
        seen.append(at)
    return seen


@pytest.mark.parametrize("engine", ENGINES)
def test_first_rounds(engine):
    found = path(FedCM(alpha=0.1), engine, 3)
    assert found == pytest.approx([0.070633, 0.195636, 0.355770], abs=1e-6)
    assert found == pytest.approx(by_hand(0.1, 3), abs=1e-12)


@pytest.mark.parametrize(("alpha", "limit"), [(1.0, 0.670133), (0.5, 0.710907), (0.1, 0.742427)])
def test_fixed_points(alpha, limit):
    assert by_hand(alpha, 400)[-1] == pytest.approx(limit, abs=1e-6)
    assert w(run(FedCM(alpha=alpha), "loop", 5)) == pytest.approx(by_hand(alpha, 5)[-1], abs=1e-12)


def test_a_cold_start_may_take_full_steps():
    found = path(FedCM(alpha=0.1, cold="plain"), "stacked", 3)
    assert found == pytest.approx(by_hand(0.1, 3, cold="plain"), abs=1e-12)
    assert found[0] > 5 * path(FedCM(alpha=0.1), "loop", 1)[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_each_way_is_divided_by_its_own_length(engine):
    uneven = {"fed": clients(*TWO, sizes=(2, 6)), "steps": 0}  # 2 and 6 steps of one sample
    assert path(FedCM(alpha=0.4), engine, 3, **uneven) == pytest.approx(
        by_hand(0.4, 3, steps=(2, 6)), abs=1e-12
    )


def test_the_rate_that_was_used_divides():
    """Half the rate in the second round: Delta is a mean gradient all the same."""
    found = run(FedCM(alpha=1.0), "loop", 2, schedule="exponential", decay=0.5)
    one = run(FedCM(alpha=1.0), "loop", 1)
    before, after, delta = w(one), w(found), found.progress.server.methods["fedcm"].tensors
    assert delta["body.weight"].item() == pytest.approx((before - after) / (0.05 * 5), abs=1e-12)


def test_a_rate_of_zero_moves_nobody():
    still = run(FedCM(alpha=0.5), "loop", 2, schedule="exponential", decay=0.0)
    assert w(still) == w(run(FedCM(alpha=0.5), "loop", 1))
    delta = still.progress.server.methods["fedcm"].tensors
    assert not any(d.any() for d in delta.values()), "no way, no direction"


def test_server_rate():
    at, faster = w(run(FedCM(alpha=0.5), "loop")), w(run(FedCM(alpha=0.5, lr=1.5), "loop"))
    assert faster == pytest.approx(1.5 * at, abs=1e-12)
    deltas = [
        run(FedCM(alpha=0.5, lr=lr), "loop").progress.server.methods["fedcm"].tensors
        for lr in (1.0, 1.5)
    ]
    assert largest_difference(*deltas) < 1e-12, "the direction is of the clients' steps"


def test_the_way_down_doubles():
    played = start(FedCM(), SHORT).play()
    model = played.progress.server.model
    shared = tree.nbytes({n: model[n] for n in played.plan.shared})
    line = played.lines[-1]
    assert line["bytes_down"] == 3 * (tree.nbytes(model) + shared + 8)
    assert line["bytes_up"] == 3 * (tree.nbytes(model) + 8)
    assert set(played.progress.server.methods["fedcm"].tensors) == set(played.plan.shared)


@pytest.mark.parametrize("other", ["fedbr", "mixup", "fedbn"])
def test_compositions_agree_on_both_engines(other):
    beside = FedBR(size=6) if other == "fedbr" else methods.make(other)
    method = beside + FedCM(alpha=0.5)
    runs = [start(method, SHORT, engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
    delta = runs[0].progress.server.methods["fedcm"].tensors
    assert all(torch.isfinite(d).all() and d.any() for d in delta.values())
    assert any(n.startswith(HEAD) for n in delta) == (other == "fedbr"), "the head has one too"
    assert any(n.startswith("conv.1") for n in delta) == (other != "fedbn"), "kept norms have none"
