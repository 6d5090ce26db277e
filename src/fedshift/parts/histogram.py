"""Histograms with soft bins, through which gradients flow, and how far two of them are apart.

A value is put into bins by a softmax over L lines whose crossings are the cut points, so that at a
low temperature nearly all of it is in one bin (Yang et al., Deep Neural Decision Trees, 2018).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedshift.method import Data
from fedshift.tree import Tree

EPS = 1e-8  # under logarithms, and the narrowest range of values that is stretched to 0 … 1
HELD = 8  # so many batches of maps, of four training batches each, are held for a second look


def cuts(bins: int, like: Tensor) -> Tensor:
    """The bins - 1 cut points: even from 0 to 1, ends included (a single one lies in the middle).

    >>> cuts(4, torch.zeros(1))
    tensor([0.0000, 0.5000, 1.0000])
    """
    if bins == 2:
        return like.new_full((1,), 0.5)
    return torch.arange(bins - 1, dtype=like.dtype, device=like.device) / (bins - 2)


def soft_bins(z: Tensor, bins: int = 8, tau: float = 0.01) -> Tensor:
    """How much of each value, scaled to 0 … 1, lies in each bin: [..., P] to [..., bins, P].

    >>> (soft_bins(torch.tensor([0.6]), bins=4) * 100).round().int().T
    tensor([[  0,   0, 100,   0]], dtype=torch.int32)
    """
    weight = torch.arange(1, bins + 1, dtype=z.dtype, device=z.device)
    edges = cuts(bins, z)
    bias = torch.cat([edges.new_zeros(1), -edges.cumsum(0)])
    # the bins are not the last axis: a softmax over so short an axis is several times as slow there
    lines = (weight / tau).unsqueeze(1) * z.unsqueeze(-2) + (bias / tau).unsqueeze(1)
    return torch.softmax(lines, dim=-2)


def limits(maps: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The least and the largest value of each channel of maps [B, C, P]; masked samples are out.

    They are constants: no gradient flows through them.

    >>> limits(torch.tensor([[[1.0, 2.0]], [[0.0, 9.0]]]), torch.tensor([True, False]))
    (tensor([1.]), tensor([2.]))
    """
    low, high = maps.detach().amin(dim=2), maps.detach().amax(dim=2)
    if mask is not None:
        low = low.masked_fill(~mask.unsqueeze(1), float("inf"))
        high = high.masked_fill(~mask.unsqueeze(1), float("-inf"))
    return low.amin(dim=0), high.amax(dim=0)


def scaled(maps: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Maps with the limits of each channel at 0 and 1, unclamped; a constant channel is shifted."""
    width = high - low
    width = torch.where(width > EPS, width, torch.ones_like(width))
    return (maps - low.unsqueeze(1)) / width.unsqueeze(1)


def histogram(
    maps: Tensor, limits: tuple[Tensor, Tensor], bins: int = 8, tau: float = 0.01
) -> Tensor:
    """The histogram of every channel of maps [B, C, P], over samples and positions: [C, bins].

    >>> maps = torch.tensor([0.0, 0.25, 0.6, 1.0]).reshape(2, 1, 2)
    >>> histogram(maps, limits(maps), bins=4)
    tensor([[0.1250, 0.3750, 0.3750, 0.1250]])
    """
    return soft_bins(scaled(maps, *limits), bins, tau).mean(dim=(0, 3))


def describe(
    data: Data,
    maps: Callable[[Tensor], Tensor],
    channels: Tensor,
    batch: int,
    bins: int = 8,
    tau: float = 0.01,
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """The limits of every channel over a client's data, and the sum of its samples' histograms.

    A second pass over the data is taken only where the maps of the first were too many to hold.

    Args:
        data: of the client.
        maps: from a batch of inputs to maps [B, C, P].
        channels: zeros, one for each channel.
        batch: of training; without gradients four of them fit at once.
        bins, tau: of the histograms.
    """
    held: list[tuple[Tensor, Tensor]] = []
    batches = 0

    def widen(acc: Tree, x: Tensor, y: Tensor, mask: Tensor) -> Tree:
        nonlocal batches
        batches += 1
        z = maps(x)
        if batches <= HELD:
            held.append((z, mask))
        low, high = limits(z, mask)
        return {"low": low.minimum(acc["low"]), "high": high.maximum(acc["high"])}

    infinite = torch.full_like(channels, float("inf"))
    found = data.fold(widen, {"low": infinite, "high": -infinite}, 4 * batch)
    bounds = found["low"], found["high"]

    def count(total: Tensor, z: Tensor, mask: Tensor) -> Tensor:
        each = soft_bins(scaled(z, *bounds), bins, tau).mean(dim=3)
        return total + torch.where(mask[:, None, None], each, 0.0).sum(dim=0)

    total = torch.zeros_like(channels).unsqueeze(1).repeat(1, bins)
    if batches <= HELD:
        for z, mask in held:
            total = count(total, z, mask)
        return bounds, total
    held.clear()
    again = data.fold(
        lambda acc, x, y, mask: {"total": count(acc["total"], maps(x), mask)},
        {"total": total},
        4 * batch,
    )
    return bounds, again["total"]


def symmetric_kl(p: Tensor, q: Tensor, eps: float = EPS) -> Tensor:
    """Half of KL(p, q) + KL(q, p), over the last axis.

    >>> p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.25, 0.5])
    >>> round(symmetric_kl(p, q).item(), 6)
    0.173287
    """
    return 0.5 * ((p - q) * (torch.log(p + eps) - torch.log(q + eps))).sum(dim=-1)
