"""Virtual images: classes of structured noise that belong to nobody and look the same to all.

An untrained network answers latents with images; the latents of a class lie around a centre of its
own, so that its images are alike and those of other classes are not. Weights, centres and latents
follow from a key: whoever has it makes the same images, up to rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift import keys

_LATENT, _WIDTH, _BASE = 32, 8, 4  # of latents, of layers, and the side of the first map
_SPREAD = 0.3  # of latents around their centre, whose own spread is 1
_SLOPE = 0.2


@dataclass(frozen=True)
class Virtual:
    """Images of a shape: (C, H, W) by convolutions on maps that grow, all else by dense layers.

    >>> virtual = Virtual((1, 28, 28))
    >>> virtual(keys.as_tensor(0), torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0])).shape
    torch.Size([3, 1, 28, 28])
    """

    shape: tuple[int, ...]

    def __call__(
        self, key: Tensor, y: Tensor, number: Tensor, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """The images with these numbers [B] of the classes y [B], each of mean 0 and spread 1."""
        latent = latents(key, y, number, dtype)
        conv = len(self.shape) == 3
        made = self._by_maps(key, latent) if conv else self._by_layers(key, latent)
        flat = made.flatten(1)
        flat = flat - flat.mean(dim=1, keepdim=True)
        spread = flat.square().mean(dim=1, keepdim=True).sqrt()
        return (flat / spread.clamp_min(1e-6)).reshape(-1, *self.shape)

    def _by_maps(self, key: Tensor, latent: Tensor) -> Tensor:
        """Maps that grow twofold, each passing a layer first: the last sees half of the image."""
        channels, *size = self.shape
        h = _dense(key, "first", latent, _WIDTH * _BASE**2).reshape(-1, _WIDTH, _BASE, _BASE)
        layers = max(1, math.ceil(math.log2(max(size) / _BASE)))
        for layer in range(layers):
            out = channels if layer == layers - 1 else _WIDTH
            h = _conv(key, f"maps{layer}", F.leaky_relu(h, _SLOPE), out)
            grown = [min(_BASE * 2 ** (layer + 1), side) for side in size]
            h = F.interpolate(h, size=grown, mode="bilinear")
        return h

    def _by_layers(self, key: Tensor, latent: Tensor) -> Tensor:
        h = F.leaky_relu(_dense(key, "first", latent, 4 * _WIDTH), _SLOPE)
        return _dense(key, "last", h, math.prod(self.shape))


def latents(key: Tensor, y: Tensor, number: Tensor, dtype: torch.dtype) -> Tensor:
    """Latents [B, 32] around the centres of their classes."""
    centre = keys.fold_in(keys.fold_in(key, "centre"), y)
    own = keys.fold_in(keys.fold_in(keys.fold_in(key, "latent"), y), number)
    around = _SPREAD * keys.normal(own, (_LATENT,), dtype)
    return keys.normal(centre, (_LATENT,), dtype) + around


def _dense(key: Tensor, name: str, x: Tensor, out: int) -> Tensor:
    return F.linear(x, _weight(key, name, (out, x.shape[1]), x.dtype))


def _conv(key: Tensor, name: str, x: Tensor, out: int) -> Tensor:
    return F.conv2d(x, _weight(key, name, (out, x.shape[1], 3, 3), x.dtype), padding=1)


def _weight(key: Tensor, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Normal weights that keep the spread of what passes a leaky ReLU (He et al., ICCV 2015)."""
    scale = math.sqrt(2.0 / math.prod(shape[1:]))
    return scale * keys.normal(keys.fold_in(key, name), shape, dtype)
