"""A few samples of each class, drawn from a client's data, with room where there are none.

Two passes: one draws positions, class by class, the next fetches what lies there. So memory holds
what is drawn and a batch, and nothing depends on how many samples a client has.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedshift import keys
from fedshift.method import Data
from fedshift.tree import Tree


def seeds_of(
    data: Data, classes: int, count: int, shape: tuple[int, ...], key: Tensor, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Samples [classes, count, ...] and whether each is there [classes, count], as 1 or 0.

    Args:
        data: passed over twice.
        classes: how many there are; labels are whole numbers.
        count: samples of each class, without replacement.
        shape: of one sample.
        key: what the draws follow from.
        like: says the type and place of the result.
    """
    at = _positions(data, classes, count, key, like)

    def fetch(acc: Tree, x: Tensor, y: Tensor, mask: Tensor) -> Tree:
        here = acc["at"] + torch.arange(len(x), device=x.device)
        wanted = (at.flatten()[:, None] == here).to(x.dtype)  # [classes * count, B]
        with torch.autocast(x.device.type, enabled=False):  # a choice, not a layer of a network
            found = wanted @ x.flatten(1)
        return {"x": acc["x"] + found, "at": acc["at"] + len(x)}

    start = {"x": like.new_zeros((classes * count, *shape)).flatten(1), "at": _zero(like)}
    x = data.fold(fetch, start)["x"]
    return x.reshape(classes, count, *shape), (at >= 0).to(like.dtype)


def _positions(data: Data, classes: int, count: int, key: Tensor, like: Tensor) -> Tensor:
    """Where the samples with the highest draws of each class lie [classes, count]; -1 for none."""
    every = torch.arange(classes, device=like.device)[:, None]

    def highest(acc: Tree, x: Tensor, y: Tensor, mask: Tensor) -> Tree:
        here = acc["at"] + torch.arange(len(y), device=y.device)
        draw = keys.uniform(keys.fold_in(key, here), (), torch.float64)
        mine = (y == every) & mask
        draws = torch.cat([acc["draw"], torch.where(mine, draw, -1.0)], dim=1)
        places = torch.cat([acc["place"], torch.where(mine, here, -1)], dim=1)
        best, order = draws.topk(count, dim=1)
        return {"draw": best, "place": places.gather(1, order), "at": acc["at"] + len(y)}

    start = {
        "draw": torch.full((classes, count), -1.0, dtype=torch.float64, device=like.device),
        "place": torch.full((classes, count), -1, dtype=torch.int64, device=like.device),
        "at": _zero(like),
    }
    return data.fold(highest, start)["place"]


def _zero(like: Tensor) -> Tensor:
    return torch.zeros((), dtype=torch.int64, device=like.device)
