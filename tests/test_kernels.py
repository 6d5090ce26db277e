"""The kernels for GPUs against torch's own functions, where there is a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedshift import kernels, layers

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


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def random(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True)


def gradients(y: torch.Tensor, inputs, slopes: torch.Tensor):
    return torch.autograd.grad(y, inputs, slopes)


def maps() -> torch.Tensor:
    """Maps [K, B, C, H, W] that lie as [B, K, C, H, W]."""
    return torch.randn(3, 2, 4, 9, 8, dtype=torch.float64, device="cuda").transpose(0, 1)


@pytest.mark.parametrize("ones", [0, 1])
@pytest.mark.parametrize("kernel, stride, padding", HOWS)
def test_patches_and_their_sum(kernel, stride, padding, ones):
    x = maps()
    (clients, batch), size = x.shape[:2], x.shape[3:]
    found = kernels.patches(x, kernel, stride, padding, ones)
    wanted = F.unfold(x.flatten(0, 1), kernel, 1, padding, stride)
    taps = wanted.shape[1]
    wanted = wanted.reshape(clients, batch, taps, -1).transpose(1, 2).reshape(clients, taps, -1)
    assert torch.equal(found[:, :taps], wanted) and (found[:, taps:] == 1).all()
    assert found.shape[1] == taps + ones
    g = torch.randn_like(found)
    each = g[:, :taps].reshape(clients, taps, batch, -1).transpose(1, 2).flatten(0, 1)
    back = F.fold(each, tuple(size), kernel, 1, padding, stride).reshape(x.shape)
    summed = kernels.summed(g, tuple(x.shape), kernel, stride, padding)
    torch.testing.assert_close(summed, back)


@pytest.mark.parametrize("kernel, stride, padding", HOWS[:4])
def test_pooling_in_double(kernel, stride, padding):
    x = maps().flatten(0, 1).contiguous().requires_grad_()
    wanted = F.max_pool2d(x, kernel, stride, padding)
    found, winners = kernels.pooled(x.detach(), wanted.shape[-2:], kernel, stride, padding)
    assert torch.equal(found, wanted)
    g = torch.randn_like(wanted)
    back = kernels.unpooled(g, winners, tuple(x.shape[-2:]), kernel, stride, padding)
    torch.testing.assert_close(back, torch.autograd.grad(wanted, x, g)[0])


@pytest.mark.parametrize("kernel, stride, padding", [(2, 2, 0), (3, 2, 1), (3, 1, 1), (3, 2, 0)])
def test_pooling(kernel, stride, padding):
    x = random(3, 5, 17, 16)
    x.data[0, 0, 3, 3], x.data[0, 1] = torch.nan, 1.0  # NaN is the largest; of equals, the first
    how = (kernel, stride, padding, 1, False)
    ours, wanted = layers._pooled(x, how), F.max_pool2d(x, *how)
    assert "Pooled" in type(ours.grad_fn).__name__
    assert torch.equal(ours.nan_to_num(9.0), wanted.nan_to_num(9.0))
    slopes = torch.randn_like(wanted)
    torch.testing.assert_close(*(gradients(y, x, slopes)[0] for y in (ours, wanted)))


@pytest.mark.parametrize("form", [layers.singly, layers.unfolded])
@pytest.mark.parametrize("stride, padding", [((1, 1), (0, 0)), ((2, 1), (1, 2)), ((3, 2), (2, 0))])
def test_convolutions(form, stride, padding):
    double = torch.float64
    x, w = random(3, 2, 4, 9, 8, dtype=double), random(3, 5, 4, 3, 2, dtype=double)
    b = random(3, 5, dtype=double)
    assert kernels.available(x)
    ours = form(x, w, b, stride, padding)
    wanted = torch.stack([F.conv2d(x[k], w[k], b[k], stride, padding) for k in range(3)])
    slopes = torch.randn_like(wanted)
    torch.testing.assert_close(ours, wanted)
    for a, b in zip(*(gradients(y, (x, w, b), slopes) for y in (ours, wanted))):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("batch", [1, 10, 16])
@pytest.mark.parametrize("inputs, outputs", [(64, 64), (200, 70), (1024, 512)])
def test_linear_layers_of_few_samples(batch, inputs, outputs):
    x, w = random(3, batch, inputs), random(3, outputs, inputs)
    assert layers._few(x, w)
    ours, wanted = layers._Few.apply(x, w), x.double() @ w.double().transpose(1, 2)
    slopes = torch.randn_like(ours)
    torch.testing.assert_close(ours, wanted.float(), rtol=1e-4, atol=1e-4)
    exact = gradients(wanted, (x, w), slopes.double())
    for a, b in zip(gradients(ours, (x, w), slopes), exact):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
