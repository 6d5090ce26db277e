"""MixStyle: mixed means and standard deviations, each sample's own lam, nothing in evaluation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedshift import keys
from fedshift.draws import keyed
from fedshift.errors import BadModel
from fedshift.methods.mixstyle import Mixing, MixStyle, mixed
from fedshift.parts import style
from tests.methods.test_battery import start

ACTS = torch.tensor(True)


def maps(requires_grad: bool = False) -> torch.Tensor:
    torch.manual_seed(3)
    return torch.randn(5, 4, 8, 9, dtype=torch.float64, requires_grad=requires_grad)


def test_styles_are_mixed():
    """Mean exactly; the root of var + 1e-6 in s leaves about 1e-6 / (2 var) of the deviation."""
    x, partner = maps(), torch.tensor([4, 2, 1, 0, 3])
    lam = torch.rand(5, dtype=torch.float64).unsqueeze(1)
    y = mixed(x, lam[:, 0], partner, ACTS)
    mean, std = x.mean((2, 3)), x.std((2, 3))
    assert torch.allclose(
        y.mean((2, 3)), lam * mean + (1 - lam) * mean[partner], rtol=0, atol=2e-15
    )
    expected = lam * std + (1 - lam) * std[partner]
    assert torch.allclose(y.std((2, 3)), expected, rtol=0, atol=2e-6)
    assert not torch.allclose(y.std((2, 3)), expected, rtol=0, atol=1e-9), "epsilon is there"


def test_what_is_shown_stays():
    """Up to a shift and a factor for each channel: normalised maps are the same."""
    x = maps()
    y = mixed(x, torch.rand(5, dtype=torch.float64), torch.tensor([4, 2, 1, 0, 3]), ACTS)

    def shown(t):
        return nn.functional.instance_norm(t, eps=0.0)

    assert torch.allclose(shown(y), shown(x), atol=1e-12)


def test_no_gradient_flows_through_styles():
    """So the gradient of a sum is the factor s'/s of each channel, and the partner gets none."""
    x, partner = maps(requires_grad=True), torch.tensor([4, 2, 1, 0, 3])
    lam = torch.full((5,), 0.3, dtype=torch.float64)
    y = mixed(x, lam, partner, ACTS)
    (slope,) = torch.autograd.grad(y[0].sum(), x)
    std = (x.var((2, 3)) + style.EPS).sqrt()
    factor = (0.3 * std[0] + 0.7 * std[4]) / std[0]
    assert torch.allclose(slope[0], factor[:, None, None].expand(4, 8, 9))
    assert not slope[1:].any()


def test_whole_batches_act_or_not_and_samples_draw_their_own_share():
    layer, x = Mixing(p=0.5, alpha=1.0), maps()
    acted = 0
    for k in range(80):
        with keyed(keys.as_tensor(k)):
            y = layer(x)
        if torch.equal(y, x):
            continue
        acted += 1
        factor = (y.std((2, 3)) / x.std((2, 3)))[:, 0]
        moved = (factor - 1).abs() > 1e-9
        assert factor[moved].unique().numel() == moved.sum(), "one share for each sample"
    assert 24 < acted < 56  # Binomial(80, 1/2): 40 with standard deviation 4.5


def test_shares_are_beta():
    """Beta(0.1, 0.1): mean 1/2, variance 1 / (4 (2 alpha + 1)) = 0.208333.

    The first sample is constant 0 up to a spread of 1e-3, the others have mean 1: the mean of a
    mixed sample 0 is 1 - lam wherever its partner is another one.
    """
    layer = Mixing(p=1.0, alpha=0.1)
    x = torch.ones(2, 1, 1, 2, dtype=torch.float64) * torch.tensor([0.0, 1.0]).reshape(2, 1, 1, 1)

    def one(key):
        with keyed(key):
            return layer(x)[0].mean()

    share = torch.vmap(one)(keys.fold_in(keys.as_tensor(5), torch.arange(4000)))
    share = share[share > 0]  # with itself: lam does not show
    assert 1900 - 200 < len(share) < 2100 + 200
    assert share.mean().item() == pytest.approx(0.5, abs=0.04)
    assert share.var().item() == pytest.approx(0.208333, abs=0.01)


def test_evaluation_and_one_sample_stay_as_they_are():
    x = maps()
    assert torch.equal(Mixing(p=1.0).eval()(x), x)
    with keyed(keys.as_tensor(0)):
        assert torch.allclose(Mixing(p=1.0)(x[:1]), x[:1])


def test_layers_are_behind_early_stages_of_maps():
    model = start(MixStyle(p=0.3, alpha=0.2)).plan.model
    found = {n: m for n, m in model.named_modules() if isinstance(m, Mixing)}
    assert list(found) == ["mixstyle_conv"], "the other stage gives vectors"
    assert (found["mixstyle_conv"].p, found["mixstyle_conv"].alpha) == (0.3, 0.2)
    with pytest.raises(BadModel, match=r"mixstyle\.layers names stage 'hidden'"):
        start(MixStyle(layers="hidden"))
