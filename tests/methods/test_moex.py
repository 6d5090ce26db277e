"""MoEx: features carry the moments of their partners, and the loss asks for both labels."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from fedshift import keys
from fedshift.errors import BadModel, BadValue
from fedshift.methods.moex import AXES, MoEx, exchanged
from fedshift.net import Net
from tests.methods.test_battery import PROTOCOL, start
from tests.toys import ToyNet

PARTNER = torch.tensor([4, 2, 1, 0, 3, 5])


def maps() -> torch.Tensor:
    torch.manual_seed(3)
    return torch.randn(6, 4, 8, 9, dtype=torch.float64)


@pytest.mark.parametrize("norm", AXES)
def test_moments_are_the_partners(norm):
    """To 3e-15 without epsilon; with 1e-5 under the root, to about 1e-5 / (2 var) relative."""
    x, axes = maps().flatten(2), AXES[norm]
    for eps, tolerance in ((0.0, 5e-15), (1e-5, 1e-2)):
        y = exchanged(x.reshape(6, 4, 8, 9), PARTNER, norm, eps).flatten(2)
        assert torch.allclose(y.mean(axes), x.mean(axes)[PARTNER], rtol=0, atol=5e-15)
        std = y.std(axes, correction=0)
        assert torch.allclose(std, x.std(axes, correction=0)[PARTNER], rtol=0, atol=tolerance)


def test_pono_is_over_channels_at_every_position():
    x = maps()
    y = exchanged(x, PARTNER, eps=0.0)
    here = x[:, :, 2, 5]
    z = (here - here.mean(1, keepdim=True)) / here.std(1, correction=0, keepdim=True)
    other = here[PARTNER]
    expected = z * other.std(1, correction=0, keepdim=True) + other.mean(1, keepdim=True)
    assert torch.allclose(y[:, :, 2, 5], expected)


def test_gradients_flow_through_moments():
    x = maps().requires_grad_()
    (slope,) = torch.autograd.grad(exchanged(x, PARTNER)[0].sum(), x)
    assert slope[4].any(), "the partner's moments"
    # the sum over channels is C times the partner's mean: the sample itself has no part in it
    assert slope[0].abs().max() < 1e-12


def played(method: MoEx, key: int) -> tuple[float, float]:
    """The loss of a step, and what it should be."""
    torch.manual_seed(0)
    model = ToyNet(dropout=0.0, norm=False).double()
    net, x = Net(model), torch.randn(6, 1, 6, 6, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    facts = SimpleNamespace(stage_shapes={"conv": (4, 3, 3), "hidden": (8,)}, task="classification")
    ctx = SimpleNamespace(key=keys.as_tensor(key), facts=facts, phase="model")
    found = method.loss(net.output(x), y, ctx, net)["task"]
    partner = keys.permutation(keys.fold_in(ctx.key, "partner"), 6)
    if keys.uniform(keys.fold_in(ctx.key, "acts")) >= method.p:
        return found.item(), F.cross_entropy(model(x), y).item()
    logits = model.head(model.hidden(exchanged(model.conv(x), partner, method.norm)))
    own, other = F.cross_entropy(logits, y), F.cross_entropy(logits, y[partner])
    return found.item(), (method.lam * own + (1 - method.lam) * other).item()


@pytest.mark.parametrize("norm", AXES)
def test_the_loss_asks_for_both_labels(norm):
    for key in range(3):
        found, expected = played(MoEx(norm=norm), key)
        assert found == pytest.approx(expected, abs=1e-14)


def test_where_nothing_is_exchanged_the_loss_is_the_tasks():
    acts = [float(keys.uniform(keys.fold_in(keys.as_tensor(k), "acts"))) < 0.25 for k in range(12)]
    assert any(acts) and not all(acts)
    for key in range(12):
        found, expected = played(MoEx(p=0.25, lam=0.5), key)
        assert found == pytest.approx(expected, abs=1e-14)


def test_what_has_no_spread_is_refused():
    with pytest.raises(BadModel, match="stage 'hidden' has one position, so no spread"):
        start(MoEx(norm="in", stage="hidden"))
    with pytest.raises(BadModel, match="one channel"):
        MoEx().build(ToyNet(), SimpleNamespace(stage_shapes={"a": (1, 3, 3)}))
    with pytest.raises(BadValue, match=r"moex\.stage is 'all', which is 2 stages: name one of"):
        start(MoEx(stage="all"))
    assert start(MoEx(stage="hidden")).plan  # a vector has channels enough


def test_running_statistics_move_once_in_a_step():
    run = start(MoEx(), PROTOCOL.replace(rounds=1)).play()
    assert run.progress.server.model["conv.1.num_batches_tracked"] == 4
