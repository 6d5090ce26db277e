"""How sites differ: what scanners, cameras, boards and archives do to an image.

Each function takes uint8 images [N, C, H, W] and returns such images. Where chance is involved, one
key per image [N] decides. Arithmetic is in float64, so that rounding to uint8 gives the same images
on every machine.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fedshift import keys as draw
from fedshift.data.warp import rotate as _rotate
from fedshift.errors import BadData


def _unit(x: Tensor) -> Tensor:
    if x.dtype != torch.uint8 or x.ndim != 4:
        raise BadData(
            f"shifts change uint8 images [N, C, H, W], but these are {x.dtype} {list(x.shape)}: "
            "convert them first"
        )
    return x.to(torch.float64) / 255.0


def _bytes(x: Tensor) -> Tensor:
    return torch.round(x.clamp(0, 1) * 255.0).to(torch.uint8)


def invert(x: Tensor) -> Tensor:
    """Black becomes white: ink on paper instead of chalk on a board.

    >>> invert(torch.tensor([[[[0, 200]]]], dtype=torch.uint8)).tolist()
    [[[[255, 55]]]]
    """
    return _bytes(1.0 - _unit(x))


def levels(x: Tensor, low: float, high: float) -> Tensor:
    """Squeeze black to white into low to high (0 to 1): fading, fog, weak light.

    >>> levels(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), 0.2, 0.6).tolist()
    [[[[51, 153]]]]
    """
    return _bytes(low + (high - low) * _unit(x))


def gamma(x: Tensor, exponent: float) -> Tensor:
    """Darken (above 1) or brighten (below 1) the middle tones: another sensor curve."""
    return _bytes(_unit(x) ** exponent)


def blur(x: Tensor, sigma: float) -> Tensor:
    """Out of focus: a Gaussian blur of sigma pixels, edges continued."""
    radius = max(1, math.ceil(3 * sigma))
    steps = torch.arange(-radius, radius + 1, dtype=torch.float64, device=x.device)
    kernel = torch.exp(-0.5 * (steps / sigma) ** 2)
    kernel = kernel / kernel.sum()
    count, channels, height, width = x.shape
    flat = _unit(x).reshape(count * channels, 1, height, width)
    flat = F.conv2d(F.pad(flat, (radius, radius, 0, 0), "replicate"), kernel[None, None, None, :])
    flat = F.conv2d(F.pad(flat, (0, 0, radius, radius), "replicate"), kernel[None, None, :, None])
    return _bytes(flat.reshape(x.shape))


def rotate(x: Tensor, degrees: float, jitter: float = 0.0, keys: Tensor | None = None) -> Tensor:
    """Held askew: turned counter-clockwise, by up to `jitter` degrees more or less per image."""
    angle = torch.full((len(x),), degrees, dtype=torch.float64, device=x.device)
    if jitter:
        spread = draw.uniform(draw.fold_in(_required(keys), "rotate"), (), torch.float64)
        angle = angle + jitter * (2 * spread - 1)
    return _bytes(_rotate(_unit(x), torch.deg2rad(angle)))


def coarse(x: Tensor, factor: int) -> Tensor:
    """Resolution loss: averaged over squares of `factor` pixels and blown up again."""
    small = F.avg_pool2d(_unit(x), factor, ceil_mode=True, count_include_pad=False)
    height, width = x.shape[-2:]
    big = small.repeat_interleave(factor, 2).repeat_interleave(factor, 3)
    return _bytes(big[..., :height, :width])


def threshold(x: Tensor, level: float) -> Tensor:
    """Two tones, as a fax sends them.

    >>> threshold(torch.tensor([[[[90, 180]]]], dtype=torch.uint8), 0.5).tolist()
    [[[[0, 255]]]]
    """
    return _bytes((_unit(x) > level).to(torch.float64))


def thicken(x: Tensor, radius: int = 1) -> Tensor:
    """Broader strokes: each pixel becomes the brightest of its neighbourhood."""
    return _bytes(F.max_pool2d(_unit(x), 2 * radius + 1, stride=1, padding=radius))


def noise(x: Tensor, std: float, keys: Tensor) -> Tensor:
    """Sensor noise: normal, of its own for every pixel."""
    grain = draw.normal(draw.fold_in(keys, "noise"), tuple(x.shape[1:]), torch.float64)
    return _bytes(_unit(x) + std * grain)


def specks(x: Tensor, share: float, keys: Tensor) -> Tensor:
    """A share of the pixels turned black or white: dust, transmission errors."""
    unit = _unit(x)
    chance = draw.uniform(draw.fold_in(keys, "specks"), tuple(x.shape[1:]), torch.float64)
    unit = torch.where(chance < share / 2, torch.zeros_like(unit), unit)
    return _bytes(torch.where(chance > 1 - share / 2, torch.ones_like(unit), unit))


def lighting(x: Tensor, strength: float, keys: Tensor) -> Tensor:
    """Light from one side: a ramp in a direction of its own per image, from 1 - strength to 1."""
    height, width = x.shape[-2:]
    angle = 2 * math.pi * draw.uniform(draw.fold_in(keys, "lighting"), (), torch.float64)
    across = torch.linspace(-1, 1, width, dtype=torch.float64, device=x.device)
    along = torch.linspace(-1, 1, height, dtype=torch.float64, device=x.device)
    angle = angle[:, None, None]
    ramp = (torch.cos(angle) * across + torch.sin(angle) * along[:, None]) / math.sqrt(2)
    return _bytes(_unit(x) * (1 - strength * (0.5 + 0.5 * ramp))[:, None])


def texture(x: Tensor, strength: float, grain: int, keys: Tensor) -> Tensor:
    """A background of soft patches of `grain` pixels, brightest where the image is dark."""
    height, width = x.shape[-2:]
    cells = (1, math.ceil(height / grain) + 1, math.ceil(width / grain) + 1)
    patches = draw.uniform(draw.fold_in(keys, "texture"), cells, torch.float64)
    cloth = F.interpolate(patches, size=(height, width), mode="bilinear", align_corners=True)
    unit = _unit(x)
    return _bytes(unit + strength * cloth * (1 - unit))


def _required(keys: Tensor | None) -> Tensor:
    if keys is None:
        raise BadData("a random shift needs one key per image: give keys")
    return keys
