"""The spectrum of images: how strong each frequency is (amplitude), and where it is (phase).

Images are real, so half of the frequencies say it all: of [..., H, W] pixels there are
[..., H, W // 2 + 1] amplitudes, as `torch.fft.rfft2` lays them out. The first, at (0, 0), is the
sum over the pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LEAST = 1e-30  # squares of amplitudes below it have no phase


def amplitude(x: Tensor) -> Tensor:
    """The amplitude of every frequency, [..., H, W // 2 + 1].

    >>> amplitude(torch.tensor([[1.0, 3.0]]))
    tensor([[4., 2.]])
    """
    found: Tensor = torch.fft.rfft2(_wide(x)).abs()
    return found


def with_amplitude(x: Tensor, wanted: Tensor) -> Tensor:
    """The images with the phase of x and the wanted amplitudes.

    Where x has none of a frequency, its phase counts as 0.

    >>> with_amplitude(torch.tensor([[1.0, 3.0]]), torch.tensor([[4.0, 4.0]]))
    tensor([[0., 4.]])
    """
    spectrum = torch.fft.rfft2(_wide(x))
    re, im = spectrum.real, spectrum.imag
    square = re.square() + im.square()
    there = square > _LEAST
    factor = wanted / torch.where(there, square, 1.0).sqrt()
    turned = torch.complex(torch.where(there, re, 1.0) * factor, im * there * factor)
    back: Tensor = torch.fft.irfft2(turned, s=(x.shape[-2], x.shape[-1]))
    return back.to(x.dtype)


def with_mean(x: Tensor, wanted: Tensor) -> Tensor:
    """The same for the frequency 0 alone: the sign of each image's mean, its size from `wanted`.

    Args:
        x: images [..., H, W].
        wanted: amplitudes [..., H, W // 2 + 1], of which the first counts.

    >>> with_mean(torch.tensor([[1.0, 3.0]]), torch.tensor([[10.0, 0.0]]))
    tensor([[4., 6.]])
    """
    mean = x.mean((-2, -1), keepdim=True)
    size = wanted[..., :1, :1].to(x.dtype) / (x.shape[-2] * x.shape[-1])
    return x + (torch.where(mean < 0, -size, size) - mean)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
