"""Label skew by Dirichlet draws in which a client that has enough gets no more.

This is how FedGen's and FedMA's codes deal, and with them FedGenP's and FedFA's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedshift import keys
from fedshift.errors import BadData

_DEALS = (1, 4, 16, 64, *[256] * 400)  # so many are drawn at a time: most often the first will do


def capped_dirichlet(
    y: Tensor, clients: int, alpha: float, *, most: float, minimum: int, seed: int = 0
) -> list[Tensor]:
    """Positions for each client.

    Classes come one after another in random order. Each is shared out by Dirichlet(alpha), where
    clients that hold `most` samples or more have no share; whole draws are repeated until every
    client has the minimum.

    Args:
        y: the labels of the pool.
        clients: how many clients to deal to.
        alpha: the concentration for each client.
        most: the number of samples from which on a client gets nothing of further classes.
        minimum: fewest samples of a client.
        seed: what all draws follow from.

    >>> parts = capped_dirichlet(torch.arange(1000) % 10, 5, 0.5, most=200, minimum=50)
    >>> sum(map(len, parts)), min(map(len, parts)) >= 50
    (1000, True)
    """
    key = keys.as_tensor(keys.fold(seed, "capped-dirichlet"))
    totals = torch.bincount(y)
    for batch, deals in enumerate(_DEALS):
        ends = _draw(keys.fold_in(key, batch), deals, totals, clients, alpha, most)
        sizes = torch.diff(ends, dim=-1, prepend=torch.zeros_like(ends[..., :1])).sum(1)
        good = (sizes.amin(1) >= minimum) & (sizes.sum(1) == len(y))
        if bool(good.any()):
            return _positions(y, ends[int(good.to(torch.int64).argmax())], key)
    raise BadData(
        f"{sum(_DEALS)} draws of Dirichlet({alpha:g}) gave none of {len(y)} samples in "
        f"which each of {clients} clients has {minimum}: raise alpha, or take fewer clients"
    )


def _draw(
    key: Tensor, deals: int, totals: Tensor, clients: int, alpha: float, most: float
) -> Tensor:
    """Many deals: where each client's piece of each class ends, [deals, classes, clients]."""
    classes = len(totals)
    order = keys.permutation(keys.fold_in(keys.fold_in(key, "order"), torch.arange(deals)), classes)
    # As logarithms: shares of a tiny concentration underflow, and what is left must still sum to 1.
    shares = keys.log_gamma(keys.fold_in(key, "shares"), alpha, (deals, classes, clients))
    held = torch.zeros(deals, clients, dtype=torch.int64)
    ends = torch.zeros(deals, classes, clients, dtype=torch.int64)
    row = torch.arange(deals)
    for turn in range(classes):
        label = order[:, turn]
        open_ = shares[row, label].masked_fill(held >= most, -torch.inf)
        cut = torch.softmax(open_, 1).nan_to_num(0.0).cumsum(1) * totals[label, None] + 1e-6
        cut = cut.to(torch.int64)
        ends[row, label] = cut
        held += torch.diff(cut, dim=1, prepend=torch.zeros_like(cut[:, :1]))
    return ends


def _positions(y: Tensor, ends: Tensor, key: Tensor) -> list[Tensor]:
    order = keys.permutation(keys.fold_in(key, "samples"), len(y))
    arranged = order[torch.argsort(y[order], stable=True)]
    members = torch.split(arranged, torch.bincount(y).tolist())
    cut = [m.tensor_split(e[:-1].tolist()) for m, e in zip(members, ends)]
    return [torch.cat([c[k] for c in cut]).sort().values for k in range(ends.shape[1])]
