"""FedDecorr's penalty in its three scalings, worked out on designs of 4 samples in 2 dimensions.

Twins: both features are the same up to scale, so that z^T z is 3 in every entry (B - 1 = 3). The
official form gives 3^2 / 4 = 2.25, the printed one mean(1) = 1, FedBR's (3/4)^2 = 0.5625 less what
its epsilon takes. Crossed: z^T z has 3 on the diagonal and 0 beside it: 0, 1/2, 0.28125 less that.
"""

from __future__ import annotations

import pytest
import torch

from fedshift import methods
from fedshift.methods.feddecorr import FORMS, FedDecorr, decorrelation
from tests.methods.quadratic import ENGINES
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import largest_difference

TWINS = torch.tensor([[1.0, 2], [2, 4], [3, 6], [4, 8]], dtype=torch.float64)
CROSSED = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64)
SHORT = PROTOCOL.replace(steps=2)


@pytest.mark.parametrize(
    ("form", "twins", "crossed"),
    [("official", 2.25, 0.0), ("fedbr", 0.56237, 0.28115), ("paper", 1.0, 0.5)],
)
def test_penalty(form, twins, crossed):
    assert decorrelation(TWINS, form).item() == pytest.approx(twins, abs=1e-5)
    assert decorrelation(CROSSED, form).item() == pytest.approx(crossed, abs=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_features_that_never_fire_and_batches_of_one(form):
    for z in (torch.zeros(4, 3), torch.tensor([[1.0, 0, 2], [3, 0, 1]]), torch.ones(1, 3)):
        z.requires_grad_()
        value = decorrelation(z, form)
        value.backward()
        assert torch.isfinite(value) and torch.isfinite(z.grad).all()
    assert decorrelation(torch.ones(1, 3), form) == 0
    assert decorrelation(torch.ones(5, 1), form) == 0, "one constant feature"


def test_the_gradient_takes_correlation_down():
    z = (TWINS + 0.3 * CROSSED).requires_grad_()
    before = decorrelation(z)
    before.backward()
    assert decorrelation(z.detach() - 0.1 * z.grad) < before


def test_weight_and_form_reach_the_loss():
    runs = {
        (form, beta): start(
            FedDecorr(beta=beta, form=form), SHORT.replace(rounds=1, lr=1e-15)
        ).play()
        for form in FORMS
        for beta in (0.1, 0.2)
    }
    terms = {k: r.lines[-1]["loss"]["decorrelation"] for k, r in runs.items()}
    assert len({round(t, 9) for t in terms.values()}) == 6
    for form in FORMS:
        assert terms[form, 0.2] == pytest.approx(2 * terms[form, 0.1])


@pytest.mark.parametrize("form", FORMS)
def test_precision_where_networks_compute_in_bfloat16(form):
    z = torch.randn(64, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = decorrelation(z, form)
    assert found.item() == pytest.approx(decorrelation(z.double(), form).item(), rel=1e-5)


@pytest.mark.parametrize("other", ["mixup", "fedprox"])
def test_compositions_agree_on_both_engines(other):
    beside = methods.make(other)
    runs = [start(beside + FedDecorr(), SHORT, engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
    assert "decorrelation" in runs[0].lines[-1]["loss"]
    alone = start(beside, SHORT).play()
    new, old = (r.progress.server.model for r in (runs[0], alone))
    assert largest_difference(new, old) > 1e-6
