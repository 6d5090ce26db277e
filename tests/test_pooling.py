"""Fast max pooling gives the numbers of torch's, to the last bit, and so do its gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedshift import pooling

KINDS = {
    "plain": (2,),
    "overlapping": (3, 2, 1),
    "uneven": ((2, 3), (2, 1), (1, 0)),
    "ceil": (3, 2, 0, 1, False, True),
    "dilated": (2, 2, 0, 2),
}


@pytest.fixture
def turned(monkeypatch):
    """How often the fast form ran."""
    found = []
    apply = pooling._MaxPool.apply
    monkeypatch.setattr(pooling._MaxPool, "apply", lambda *a: found.append(1) or apply(*a))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_are_torchs(kind, dtype, turned):
    # in steps of a half, so that many windows hold equal numbers; and some that are no numbers
    x = (2 * torch.randn(4, 32, 24, 24, dtype=dtype)).round() / 2
    x[0, 0, 3, 3] = torch.nan
    found = []
    for module in (nn.MaxPool2d(*KINDS[kind]), pooling.MaxPool2d(*KINDS[kind])):
        leaf = x.clone().requires_grad_()
        y = module(leaf)
        (grad,) = torch.autograd.grad(y, leaf, torch.arange(y.numel()).reshape(y.shape).to(y))
        found.append((y.detach(), grad))
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine.nan_to_num(9.0), theirs.nan_to_num(9.0))
        assert mine.stride() == theirs.stride()
    assert len(turned) == 1


def test_under_torch_func_it_is_the_same(turned):
    module, x = pooling.MaxPool2d(2), torch.randn(3, 4, 16, 32, 32)
    grad = torch.func.grad(lambda x: module(x).square().sum())
    one, each = grad(x[0]), torch.vmap(grad)(x)
    assert turned
    leaf = x[0].clone().requires_grad_()
    (plain,) = torch.autograd.grad(nn.MaxPool2d(2)(leaf).square().sum(), leaf)
    assert torch.equal(one, plain) and torch.equal(each[0], plain)
    turned.clear()
    assert torch.equal(torch.vmap(module)(x)[0], module(x[0]).detach())


def test_a_second_derivative_goes_through(turned):
    leaf = torch.randn(4, 16, 32, 32).requires_grad_()
    found = []
    for module in (nn.MaxPool2d(2), pooling.MaxPool2d(2)):
        (first,) = torch.autograd.grad(module(leaf).pow(3).sum(), leaf, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), leaf)[0])
    assert torch.equal(*found) and len(turned) == 1


@pytest.mark.parametrize("shape", [(4, 2, 200, 200), (2, 16, 8, 8), (32, 64, 64)])
def test_small_maps_and_maps_of_few_channels_stay_with_torch(shape, turned):
    x = torch.randn(shape)
    assert torch.equal(pooling.MaxPool2d(2)(x), nn.MaxPool2d(2)(x)) and not turned


def test_maps_that_lie_otherwise_stay_with_torch(turned):
    x = torch.randn(4, 32, 24, 24).contiguous(memory_format=torch.channels_last)
    pooling.MaxPool2d(2)(x)
    assert not turned


def test_a_subclass_is_left_as_it_is():
    class Own(nn.MaxPool2d):
        pass

    model = nn.Sequential(Own(2), nn.MaxPool2d(2))
    pooling.quicken(model)
    assert [type(m) for m in model] == [Own, pooling.MaxPool2d]
