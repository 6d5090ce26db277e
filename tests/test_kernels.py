"""The kernels for GPUs against torch's own functions, in float64, where there is a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedshift import kernels

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or kernels.triton is None, reason="needs a CUDA GPU and Triton"
)

HOWS = [
    ((3, 3), (1, 1), (0, 0)),
    ((5, 3), (2, 1), (2, 1)),
    ((2, 2), (2, 2), (0, 0)),
    ((3, 3), (2, 2), (1, 1)),
    ((1, 2), (3, 1), (0, 1)),
]


def maps() -> torch.Tensor:
    """Maps [K, B, C, H, W] that lie as [B, K, C, H, W]."""
    torch.manual_seed(0)
    return torch.randn(3, 2, 4, 9, 8, dtype=torch.float64, device="cuda").transpose(0, 1)


@pytest.mark.parametrize("kernel, stride, padding", HOWS)
def test_patches_and_their_sum(kernel, stride, padding):
    x = maps()
    (clients, batch), size = x.shape[:2], x.shape[3:]
    found = kernels.patches(x, kernel, stride, padding)
    wanted = F.unfold(x.flatten(0, 1), kernel, 1, padding, stride)
    taps = wanted.shape[1]
    wanted = wanted.reshape(clients, batch, taps, -1).transpose(1, 2).reshape(clients, taps, -1)
    assert torch.equal(found, wanted)
    g = torch.randn_like(found)
    each = g.reshape(clients, taps, batch, -1).transpose(1, 2).flatten(0, 1)
    back = F.fold(each, tuple(size), kernel, 1, padding, stride).reshape(x.shape)
    summed = kernels.summed(g, tuple(x.shape), kernel, stride, padding)
    torch.testing.assert_close(summed, back)


@pytest.mark.parametrize("kernel, stride, padding", HOWS[:4])
def test_the_gradient_of_pooling(kernel, stride, padding):
    x = maps().flatten(0, 1).contiguous().requires_grad_()
    y, winners = F.max_pool2d(x, kernel, stride, padding, return_indices=True)
    g = torch.randn_like(y)
    (wanted,) = torch.autograd.grad(y, x, g)
    found = kernels.unpooled(g, winners, tuple(x.shape[-2:]), kernel, stride, padding)
    torch.testing.assert_close(found, wanted)
