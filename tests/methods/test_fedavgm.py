"""FedAvgM: displacements under a constant pseudo-gradient of 1.

A client whose loss is w moves by -1 in one step of rate 1, so g = 1 in every round. With beta = 0.9
the velocity is 1, then 1.9: the server moves 2.9 in two rounds. Nesterov's form moves along
1 + 0.9, then 1 + 0.9 * 1.9: 4.61.
"""

from __future__ import annotations

import pytest
import torch

from fedshift.method import State
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.fedavgm import FedAvgM
from tests.methods.quadratic import ENGINES, W, clients, run, w
from tests.methods.test_battery import PROTOCOL, start

SLOPE = clients((0, 0, 1), (0, 0, 1))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("method", "moved"),
    [
        (FedAvgM(beta=0.9), 2.9),
        (FedAvgM(beta=0.01), 2.01),
        (FedAvgM(beta=0.9, nesterov=True), 4.61),
        (FedAvgM(beta=0.9, lr=0.1), 0.29),
        (FedAvgM(beta=0.0), 2.0),
    ],
)
def test_displacement_after_two_rounds(engine, method, moved):
    played = run(method, engine, 2, fed=SLOPE, steps=1, lr=1)
    assert w(played) == pytest.approx(-moved, abs=1e-12)


def test_the_velocity_is_the_servers_and_nobody_elses():
    played = run(FedAvgM(beta=0.9), "loop", 2, fed=SLOPE, steps=1, lr=1)
    assert played.progress.server.methods["fedavgm"].tensors[W].item() == pytest.approx(1.9)
    assert not any(played.progress.kept.values())


def test_in_the_long_run_the_step_is_ten_times_as_long():
    """v after r rounds is (1 - 0.9^r) / 0.1: with eta_s = 0.1 a round then moves FedAvg's 1."""
    before, behind = (
        w(run(FedAvgM(beta=0.9, lr=0.1), "loop", r, fed=SLOPE, steps=1, lr=1)) for r in (29, 30)
    )
    assert before - behind == pytest.approx(1 - 0.9**30, abs=1e-12)


def test_buffers_take_the_plain_mean():
    """Round 2 from equal models: momentum moves weights on, but no running statistic."""
    with_momentum, without = (start(m, PROTOCOL.replace(rounds=1)) for m in (FedAvgM(), FedAvg()))
    with_momentum.progress.server.methods["fedavgm"] = State(
        {
            n: torch.ones_like(t)
            for n, t in with_momentum.progress.server.methods["fedavgm"].tensors.items()
        }
    )
    a, b = (r.play().progress.server.model for r in (with_momentum, without))
    for name in a:
        difference = (a[name].double() - b[name].double()).abs().max().item()
        learnt = name in with_momentum.plan.shared
        assert difference == (pytest.approx(0.9, abs=1e-9) if learnt else 0.0), name
