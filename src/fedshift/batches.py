"""Which samples a local step sees: pools of samples on a device, and keyed orders over them.

All batches are full. A client's stream of samples is one permutation of its data after another;
step t takes the samples t*B … (t+1)*B-1 of the stream. So an epoch is ceil(n/B) steps, the last one
topped up from the next permutation, and a client smaller than a batch wraps around.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedshift import keys
from fedshift.data.augment import Pipeline
from fedshift.federation import Samples
from fedshift.tree import Tree

_AT_ONCE = 1 << 26  # random numbers drawn at a time when orders are made


@dataclasses.dataclass(frozen=True)
class Pool:
    """The training samples of several clients, one after another.

    `first` and `count` say where each client's samples lie. The samples may stay on the host (or in
    a file mapped into memory) when the device is another: then `take` carries them over.
    """

    x: Tensor
    y: Tensor
    first: tuple[int, ...]
    count: tuple[int, ...]
    device: torch.device

    @classmethod
    def of(cls, parts: Sequence[Samples], device: torch.device, resident: bool = True) -> Pool:
        """Pool samples; `resident` puts them on the device, otherwise batches are carried there."""
        counts = tuple(len(p) for p in parts)
        firsts = tuple(itertools.accumulate(counts[:-1], initial=0))
        if len(parts) == 1:
            x, y = parts[0].x, parts[0].y
        else:
            x, y = torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts])
        if resident:
            x, y = x.to(device), y.to(device)
        return cls(x, y, firsts, counts, device)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The samples at positions [...], on the device."""
        flat = index.reshape(-1).to(self.x.device)
        x, y = self.x.index_select(0, flat), self.y.index_select(0, flat)
        return x.to(self.device), y.to(self.device, torch.int64)


def order(key: Tensor, n: Tensor, steps: int, batch: int, largest: int, smallest: int) -> Tensor:
    """Positions [..., steps, batch] within a client's samples, from its key and its number of them.

    `key` and `n` may have a leading client axis; `largest` and `smallest` bound n on the host.
    """
    passes = math.ceil(steps * batch / smallest)
    rows = max(1, key.numel())
    if rows > 1 and rows * passes * largest > _AT_ONCE:
        each = [order(k, m, steps, batch, int(m), int(m)) for k, m in zip(key, n)]
        return torch.stack(each)
    here = keys.fold_in(key, "order")[..., None]
    draws = keys.bits(keys.fold_in(here, torch.arange(passes, device=key.device)), (largest,))
    outside = torch.arange(largest, device=key.device) >= n[..., None, None]
    draws = draws.masked_fill(outside, torch.iinfo(torch.int64).max)
    shuffled = torch.argsort(draws, dim=-1, stable=True)
    at = torch.arange(steps * batch, device=key.device).expand(*key.shape, -1)
    position = (at // n[..., None]) * largest + at % n[..., None]
    taken = shuffled.flatten(-2).gather(-1, position)
    return taken.reshape(*key.shape, steps, batch)


@dataclasses.dataclass(frozen=True)
class View:
    """One client's training data in order, without augmentation, for `start` and `report`.

    `index` [N] points into the pool; where clients are mapped over, it is padded to a common length
    and `mask` says what is real.
    """

    pool: Pool
    index: Tensor
    mask: Tensor
    pipeline: Pipeline
    dtype: torch.dtype

    def fold(
        self, f: Callable[[Tree, Tensor, Tensor, Tensor], Tree], start: Tree, batch: int = 256
    ) -> Tree:
        """Pass once over the data in chunks: `acc = f(acc, x, y, mask)`."""
        acc = start
        for at in range(0, self.index.shape[-1], batch):
            index = self.index[at : at + batch]
            x, y = self.pool.take(index)
            acc = f(acc, self.pipeline(x, None, self.dtype), y, self.mask[at : at + batch])
        return acc
