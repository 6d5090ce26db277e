"""FedSAM on quadratics worked out by hand, and what its second pass leaves alone."""

from __future__ import annotations

import pytest
import torch

from fedshift.methods.fedavg import FedAvg
from fedshift.methods.fedsam import FedSAM
from fedshift.parts.sharpness import uphill, uphill_adaptive
from tests.methods.quadratic import ENGINES, clients, run, w
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import largest_difference


@pytest.mark.parametrize("engine", ENGINES)
def test_one_step(engine):
    """L = w^2 / 2 from w = 1, rho 0.1, rate 0.1: w' = 1.1, so w = 1 - 0.11 = 0.89."""
    found = run(FedSAM(rho=0.1), engine, fed=clients((1.0, 0.0, 0.0)), start=1.0, steps=1)
    assert w(found) == pytest.approx(0.89, abs=1e-10)


@pytest.mark.parametrize("engine", ENGINES)
def test_one_adaptive_step(engine):
    """The same with T = |w| + 1 = 2: w' = 1 + 0.1 * 4 / 2 = 1.2, so w = 1 - 0.12 = 0.88."""
    sam = FedSAM(rho=0.1, adaptive=True, eta=1.0)
    found = run(sam, engine, fed=clients((1.0, 0.0, 0.0)), start=1.0, steps=1)
    assert w(found) == pytest.approx(0.88, abs=1e-10)


def test_the_norm_is_over_all_tensors():
    torch.manual_seed(1)
    params = {"a": torch.randn(3, 2).double(), "b": torch.randn(4).double()}
    grads = {n: torch.randn_like(p) for n, p in params.items()}
    moved = uphill(params, grads, 0.3)
    apart = torch.cat([(moved[n] - params[n]).flatten() for n in params])
    whole = torch.cat([grads[n].flatten() for n in params])
    assert torch.allclose(apart, 0.3 * whole / whole.norm())


def test_adaptive_distance_is_in_units_of_the_weights():
    """||T^-1 (w' - w)|| = rho; biases count as they are."""
    torch.manual_seed(1)
    params = {"a": torch.randn(3, 2).double(), "b": torch.randn(4).double()}
    grads = {n: torch.randn_like(p) for n, p in params.items()}
    moved = uphill_adaptive(params, grads, 0.5, 0.2)
    a = (moved["a"] - params["a"]) / (params["a"].abs() + 0.2)
    b = moved["b"] - params["b"]
    assert torch.cat([a.flatten(), b]).norm().item() == pytest.approx(0.5, abs=1e-12)
    assert torch.allclose(b / b.norm(), grads["b"] / grads["b"].norm())


def test_without_a_gradient_it_stays():
    still = {"a": torch.ones(2, 2)}
    for moved in (
        uphill(still, {"a": torch.zeros(2, 2)}, 0.1),
        uphill_adaptive(still, {"a": torch.zeros(2, 2)}, 0.1, 0.2),
    ):
        assert torch.equal(moved["a"], still["a"])


def test_the_second_pass_moves_no_statistics():
    one = PROTOCOL.replace(rounds=1, lr=0.0)
    a, b = (start(m, one).play().progress.server.model for m in (FedAvg(), FedSAM(rho=5.0)))
    assert largest_difference(a, b) < 1e-12


def test_the_switch_changes_runs():
    short = PROTOCOL.replace(steps=2)
    models = [
        start(FedSAM(rho=0.5, adaptive=adaptive, eta=eta), short).play().progress.server.model
        for adaptive, eta in ((False, 0.2), (True, 0.2), (True, 0.5))
    ]
    assert largest_difference(models[0], models[1]) > 1e-6
    assert largest_difference(models[1], models[2]) > 1e-6


def test_other_networks_phases_take_plain_gradients():
    """FedBR's head has a phase of its own; with the model's rate at 0 it alone learns."""
    short = PROTOCOL.replace(steps=1, rounds=1)
    runs = [start(f"fedbr{more}", short).play() for more in ("", "+fedsam")]
    head = [
        {n: t for n, t in r.progress.server.model.items() if n.startswith("fedbr")} for r in runs
    ]
    rest = [
        {n: t for n, t in r.progress.server.model.items() if not n.startswith("fedbr")}
        for r in runs
    ]
    assert largest_difference(*head) < 1e-12 and largest_difference(*rest) > 1e-6


@pytest.mark.parametrize("adaptive", [True, False])
def test_engines_agree_in_both_forms(adaptive):
    runs = [
        start(FedSAM(adaptive=adaptive), PROTOCOL.replace(steps=2), engine=e).play()
        for e in ENGINES
    ]
    assert largest_difference(*map(state, runs)) < 1e-9
