"""How FedGen's and FedGenP's codes deal MNIST, draw for draw.

Published numbers were made on the deal that the codes' own seed gives. It is made here again, with
numpy's and Python's older generators, whose streams are fixed for good.
"""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor

from fedshift.errors import BadData

SEED = 42  # the codes'
_TRIES = 10_000


def fedgen_deal(
    y: Tensor, clients: int, alpha: float, *, share: float, minimum: int, seed: int = SEED
) -> list[Tensor]:
    """Positions for each client.

    Classes come one after another in random order. Of each min(share N / clients, share n) images
    are kept, N being all and n those of the class, and dealt by Dirichlet(alpha), where clients
    that hold share N / clients or more get nothing; until every client has the minimum.

    Args:
        y: the labels of the pool.
        clients: how many clients to deal to.
        alpha: the concentration for each client.
        share: of the pool that is dealt.
        minimum: fewest samples of a client.
        seed: what all draws follow from.

    >>> parts = fedgen_deal(torch.arange(1000) % 10, 5, 0.5, share=1.0, minimum=50)
    >>> sum(map(len, parts)), min(map(len, parts)) >= 50
    (1000, True)
    """
    members = [np.flatnonzero(y.numpy() == c) for c in range(int(y.max()) + 1)]
    order = list(range(len(members)))
    random.Random(seed).shuffle(order)
    rng = np.random.RandomState(seed)
    most = share * len(y) / clients
    for _ in range(_TRIES):
        parts: list[list[int]] = [[] for _ in range(clients)]
        for c in order:
            chosen = members[c][_shuffled(rng, len(members[c]))]
            if share < 1:
                chosen = chosen[: int(min(most, int(share * len(chosen))))]
            open_ = np.array([len(part) < most for part in parts])
            pieces = rng.dirichlet(np.repeat(alpha, clients)) * open_
            ends = np.cumsum(pieces / pieces.sum()) * len(chosen)
            for part, piece in zip(parts, np.split(chosen, ends.astype(int)[:-1])):
                part += piece.tolist()
        if min(map(len, parts)) >= minimum:
            return [torch.tensor(part).sort().values for part in parts]
    raise BadData(
        f"no draw of Dirichlet({alpha:g}) from {len(y)} samples was found in which each of "
        f"{clients} clients has {minimum}: raise alpha, or take fewer clients"
    )


def _shuffled(rng: np.random.RandomState, count: int) -> np.ndarray:
    order = np.arange(count)
    rng.shuffle(order)
    return order
