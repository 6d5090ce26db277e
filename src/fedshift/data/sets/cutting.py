"""Pools cut into splits of given sizes, every class alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedshift import keys
from fedshift.data.partition import spread
from fedshift.errors import BadData
from fedshift.federation import Client, Samples


def pieces(y: Tensor, sizes: Sequence[int], order: Tensor, what: str) -> list[Tensor]:
    """Positions of disjoint pieces of the given sizes, each with the classes in their proportions.

    Args:
        y: a label per sample.
        sizes: of the pieces; what is left over belongs to none.
        order: a random number per sample, which decides.
        what: how an error calls the pool.

    >>> y = torch.arange(20) % 2
    >>> [y[piece].bincount().tolist() for piece in pieces(y, (10, 4), keys.bits(y[0], (20,)), "")]
    [[5, 5], [2, 2]]
    """
    if sum(sizes) > len(y):
        raise BadData(
            f"{what} has {len(y)} images, but {' + '.join(map(str, sizes))} are taken from it: "
            "complete the set"
        )
    arranged = torch.argsort(spread(y, order), stable=True)
    return [piece.sort().values for piece in torch.split(arranged[: sum(sizes)], list(sizes))]


def drawn(key: int, n: int) -> Tensor:
    """A random number for each of n samples."""
    return keys.bits(keys.as_tensor(key), (n,))


def client(name: str, pool: Samples, cut: Sequence[Tensor]) -> Client:
    """A client with the pieces (training, validation, test) of a pool."""
    return Client(name, *(pool.take(piece) for piece in cut))
