"""Colour arithmetic on float images [N, 3, H, W] between 0 and 1: grey, hue, saturation, value."""

from __future__ import annotations

import torch
from torch import Tensor

LUMA = (0.2989, 0.587, 0.114)  # ITU-R BT.601, as torchvision rounds them


def grey(x: Tensor) -> Tensor:
    """The luma [N, 1, H, W]; images of one channel are their own."""
    if x.shape[1] == 1:
        return x
    r, g, b = x.unbind(1)
    return (LUMA[0] * r + LUMA[1] * g + LUMA[2] * b)[:, None]


def turn_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue of RGB images by a share of the colour circle, one per image [N].

    >>> red = torch.tensor([1.0, 0.0, 0.0]).reshape(1, 3, 1, 1)
    >>> turn_hue(red, torch.tensor([1 / 3])).flatten().round().tolist()
    [0.0, 1.0, 0.0]
    """
    r, g, b = x.unbind(1)
    value = x.amax(1)
    span = value - x.amin(1)
    safe = torch.where(span > 0, span, torch.ones_like(span))
    sector = torch.where(
        value == r,
        torch.remainder((g - b) / safe, 6.0),
        torch.where(value == g, (b - r) / safe + 2.0, (r - g) / safe + 4.0),
    )
    sector = sector + 6.0 * turn[:, None, None]
    channels = []
    for offset in (5.0, 3.0, 1.0):
        k = torch.remainder(sector + offset, 6.0)
        channels.append(value - span * torch.minimum(k, 4.0 - k).clamp(0.0, 1.0))
    return torch.stack(channels, dim=1)
