"""Dealing one pool of samples to clients, and cutting a client's samples into splits.

A partitioner looks at labels only and answers with positions, one index tensor per client; `deal`
makes a federation of them. Every choice is drawn from the seed, none from a global generator.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedshift import keys
from fedshift.errors import BadData, BadValue, UnknownName
from fedshift.federation import Client, Federation, Samples

SHARES = (0.6, 0.15, 0.25)  # training, validation, test
SPLITS = ("train", "val", "test")
_TRIES = 1000
_FLOOR = 1e-6  # of a Dirichlet concentration, which must be positive


def by_domain(domains: Sequence[Any] | Tensor | np.ndarray[Any, Any]) -> dict[str, Tensor]:
    """One client per domain, in the order of first appearance.

    >>> by_domain(["photo", "sketch", "photo"])
    {'photo': tensor([0, 2]), 'sketch': tensor([1])}
    """
    found: dict[str, list[int]] = {}
    for position, domain in enumerate(
        domains.tolist() if isinstance(domains, (Tensor, np.ndarray)) else domains
    ):
        found.setdefault(str(domain), []).append(position)
    return {name: torch.tensor(index) for name, index in found.items()}


def dirichlet(
    y: Tensor,
    clients: int,
    alpha: float,
    *,
    seed: int = 0,
    concentration: str = "flat",
    minimum: int = 1,
) -> list[Tensor]:
    """Label skew: the smaller alpha, the fewer classes a client sees.

    Args:
        y: the labels of the pool.
        clients: how many clients to deal to.
        alpha: concentration of the Dirichlet distribution.
        seed: what all draws follow from.
        concentration: "flat" shares out every class over the clients by Dirichlet(alpha), so that
            clients differ in size; "prior" gives all clients equally many samples, and each draws
            its class shares from Dirichlet(alpha * p) with p the class proportions of what is left.
        minimum: fewest samples of a client; "flat" draws again until every client has them.

    >>> y = torch.arange(1000) % 10
    >>> [len(part) for part in dirichlet(y, 4, 0.1, concentration="prior")]
    [250, 250, 250, 250]
    """
    y = _labels(y, clients)
    if not (alpha > 0 and math.isfinite(alpha)):
        raise BadValue(f"dirichlet alpha is {alpha}: give a number above 0")
    if minimum * clients > len(y):
        raise BadValue(
            f"{clients} clients of at least {minimum} samples need {minimum * clients}, but the "
            f"pool has {len(y)}: lower `clients` or `minimum`"
        )
    key = keys.as_tensor(keys.fold(seed, "dirichlet", concentration))
    if concentration == "flat":
        return _flat(y, clients, alpha, key, minimum)
    if concentration in ("prior", "even"):
        return _one_by_one(y, clients, alpha, key, by_prior=concentration == "prior")
    raise UnknownName("concentration", concentration, ("flat", "prior", "even"))


def _flat(y: Tensor, clients: int, alpha: float, key: Tensor, minimum: int) -> list[Tensor]:
    members = _by_class(y, keys.fold_in(key, "order"))
    sizes = torch.tensor([len(m) for m in members], dtype=torch.float64)
    alphas = torch.full((len(members), clients), float(alpha), dtype=torch.float64)
    for attempt in range(_TRIES):
        shares = keys.dirichlet(keys.fold_in(keys.fold_in(key, "shares"), attempt), alphas)
        ends = torch.round(shares.cumsum(1) * sizes[:, None]).to(torch.int64)
        ends[:, -1] = sizes.to(torch.int64)
        counts = torch.diff(ends, dim=1, prepend=torch.zeros(len(members), 1, dtype=torch.int64))
        if int(counts.sum(0).min()) >= minimum:
            cut = [_pieces(m, c.tolist()) for m, c in zip(members, counts)]
            return [torch.cat([c[k] for c in cut]).sort().values for k in range(clients)]
    raise BadData(
        f"no Dirichlet({alpha:g}) draw of {_TRIES} gave each of {clients} clients {minimum} "
        f"samples of {len(y)}: raise `alpha`, or lower `clients` or `minimum`"
    )


def _one_by_one(y: Tensor, clients: int, alpha: float, key: Tensor, by_prior: bool) -> list[Tensor]:
    left = [m.tolist() for m in _by_class(y, keys.fold_in(key, "order"))]
    parts = []
    for k, size in enumerate(_even_sizes(len(y), clients)):
        here = keys.fold_in(keys.fold_in(key, "client"), k)
        remaining = torch.tensor([len(m) for m in left], dtype=torch.float64)
        p = remaining / remaining.sum() if by_prior else (remaining > 0).to(torch.float64)
        strength = (alpha * p).clamp_min(_FLOOR)
        # Kept as logarithms: shares of a tiny concentration underflow, and when the large ones run
        # out, what is left must still be a distribution.
        log_q = keys.log_gamma(keys.fold_in(here, "shares"), strength, tuple(strength.shape))
        draws = keys.uniform(keys.fold_in(here, "draws"), (size,), torch.float64).tolist()
        parts.append(torch.tensor(_take(left, log_q, draws)).sort().values)
    return parts


def _take(left: list[list[int]], log_q: Tensor, draws: list[float]) -> list[int]:
    """Draw a class per sample by its share and take one of its samples; `left` shrinks."""
    taken: list[int] = []
    ends = _cumulative(left, log_q)
    for draw in draws:
        label = bisect.bisect_right(ends, draw * ends[-1])
        taken.append(left[label].pop())
        if not left[label] and len(taken) < len(draws):
            ends = _cumulative(left, log_q)
    return taken


def _cumulative(left: list[list[int]], log_q: Tensor) -> list[float]:
    """The upper ends of the classes' shares, exhausted classes having none."""
    empty = torch.tensor([not m for m in left])
    ends: list[float] = torch.softmax(log_q.masked_fill(empty, -math.inf), 0).cumsum(0).tolist()
    return ends


def shards(y: Tensor, clients: int, per_client: int = 2, *, seed: int = 0) -> list[Tensor]:
    """Label skew: sort by label, cut into equal shards, deal each client some of them.

    >>> y = torch.arange(100) // 10
    >>> [len(set(y[part].tolist())) for part in shards(y, 5, 1)]
    [2, 2, 2, 2, 2]
    """
    y = _labels(y, clients)
    if per_client < 1 or clients * per_client > len(y):
        raise BadValue(
            f"{clients} clients with {per_client} shards each cannot be dealt {len(y)} samples: "
            "give at least one shard, and no more shards than samples"
        )
    key = keys.as_tensor(keys.fold(seed, "shards"))
    pieces = torch.cat(_by_class(y, keys.fold_in(key, "order"))).tensor_split(clients * per_client)
    order = keys.permutation(keys.fold_in(key, "deal"), len(pieces)).reshape(clients, per_client)
    return [torch.cat([pieces[i] for i in row]).sort().values for row in order.tolist()]


def evenly(y: Tensor, clients: int, *, seed: int = 0) -> list[Tensor]:
    """No skew: every class dealt evenly, the clients' sizes differing by at most one.

    >>> [len(part) for part in evenly(torch.arange(10) % 2, 3)]
    [4, 3, 3]
    """
    y = _labels(y, clients)
    arranged = torch.cat(_by_class(y, keys.as_tensor(keys.fold(seed, "evenly"))))
    return [arranged[k::clients].sort().values for k in range(clients)]


def split(
    samples: Samples,
    shares: Sequence[float] = SHARES,
    *,
    seed: int = 0,
    stratified: bool = True,
    order: Tensor | None = None,
) -> tuple[Samples, Samples, Samples]:
    """Cut samples into training, validation and test.

    Args:
        samples: what to cut.
        shares: of training, validation and test; they sum to 1.
        seed: what the draw follows from.
        stratified: every class is cut alike, to within one sample (labels of pixels have no class:
            they are cut at random).
        order: one random number per sample, instead of draws from the seed.

    >>> both = Samples(torch.zeros(20, 1), torch.arange(20) % 2)
    >>> [part.y.bincount().tolist() for part in split(both, (0.6, 0.2, 0.2))]
    [[6, 6], [2, 2], [2, 2]]
    """
    y = samples.y if stratified and samples.y.ndim == 1 else None
    cut = split_index(len(samples), y, shares, seed=seed, order=order)
    train, val, test = map(samples.take, cut)
    return train, val, test


def split_index(
    n: int,
    y: Tensor | None,
    shares: Sequence[float] = SHARES,
    *,
    seed: int = 0,
    order: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The positions of training, validation and test among n samples; `split` explains the rest."""
    shares = check_shares(shares)
    if order is None:
        order = keys.bits(keys.as_tensor(keys.fold(seed, "split")), (n,))
    if y is not None:
        order = spread(y, order)
    arranged = torch.argsort(order, stable=True)
    first = max(1, math.floor(shares[0] * n + 0.5))
    second = max(first, math.floor((shares[0] + shares[1]) * n + 0.5))
    train, val, test = torch.tensor_split(arranged, [first, second])
    return train.sort().values, val.sort().values, test.sort().values


def spread(y: Tensor, order: Tensor) -> Tensor:
    """Ranks that run evenly through every class, so that any cut of them cuts all classes alike."""
    labels, draw = y.numpy(), order.numpy()
    arranged = np.lexsort((draw, labels))
    counts = np.bincount(labels)
    rank = np.arange(len(labels)) - (counts.cumsum() - counts)[labels[arranged]]
    place = np.empty(len(labels))
    place[arranged] = (rank + 0.5) / counts[labels[arranged]]
    ranks = np.empty(len(labels), dtype=np.int64)
    # Classes of equal size tie: the random order decides among them.
    ranks[np.lexsort((draw, place))] = np.arange(len(labels))
    return torch.from_numpy(ranks)


def deal(
    name: str,
    pool: Samples,
    parts: Sequence[Tensor] | Mapping[str, Tensor],
    *,
    classes: Sequence[str] | None = None,
    shares: Sequence[float] = SHARES,
    seed: int = 0,
    **fields: Any,
) -> Federation:
    """A federation out of a pool and the positions that each client gets.

    Args:
        name: of the federation.
        pool: all samples.
        parts: positions per client, by name or in order (then called "client-0" and so on).
        classes: names of the classes; "0", "1"… where none are given.
        shares: of training, validation and test in each client's samples.
        seed: what the split follows from.
        fields: further fields of the federation, such as `pipeline` or `task`.

    >>> pool = Samples(torch.zeros(40, 1, 4, 4), torch.arange(40) % 2)
    >>> deal("toy", pool, evenly(pool.y, 2)).names
    ('client-0', 'client-1')
    """
    if not isinstance(parts, Mapping):
        digits = len(str(max(len(parts) - 1, 0)))
        parts = {f"client-{k:0{digits}d}": part for k, part in enumerate(parts)}
    clients = []
    for client, index in parts.items():
        if len(index) == 0:
            raise BadData(f"client '{client}' of '{name}' was dealt no samples: leave it out")
        cut = split(pool.take(index), shares, seed=keys.fold(seed, "client", client))
        clients.append(Client(client, *cut))
    names = tuple(classes) if classes else numbered_classes(pool.y)
    return Federation(name, tuple(clients), names, **fields)


def numbered_classes(y: Tensor) -> tuple[str, ...]:
    """Class names "0", "1"… up to the largest label."""
    return tuple(str(c) for c in range(int(y.max()) + 1))


def check_shares(shares: Sequence[float]) -> tuple[float, float, float]:
    """The shares of training, validation and test, or an error that says what they must be."""
    sound = len(shares) == 3 and all(math.isfinite(s) and s >= 0 for s in shares)
    if not sound or abs(sum(shares) - 1) > 1e-6 or shares[0] <= 0:
        raise BadValue(
            f"the shares are {tuple(shares)}: give three numbers (training, validation, test) that "
            "sum to 1, the first above 0"
        )
    return shares[0], shares[1], shares[2]


def _labels(y: Tensor, clients: int) -> Tensor:
    y = torch.as_tensor(y)
    if y.ndim != 1:
        raise BadValue(f"labels have shape {tuple(y.shape)}: a pool is dealt by one label a sample")
    if y.is_floating_point() or (len(y) and int(y.min()) < 0):
        raise BadValue("labels must be whole numbers from 0: convert them to int64")
    if not 1 <= clients <= len(y):
        raise BadValue(
            f"{len(y)} samples cannot be dealt to {clients} clients: give 1 to {len(y)} clients"
        )
    return y.to(torch.int64)


def _by_class(y: Tensor, key: Tensor) -> list[Tensor]:
    """The positions of each class, shuffled."""
    order = keys.permutation(key, len(y))
    arranged = order[torch.argsort(y[order], stable=True)]
    return _pieces(arranged, torch.bincount(y).tolist())


def _pieces(index: Tensor, sizes: list[int]) -> list[Tensor]:
    """An index cut into pieces of the given sizes."""
    ends = torch.tensor(sizes).cumsum(0)[:-1].tolist()
    return list(torch.tensor_split(index, ends))


def _even_sizes(n: int, parts: int) -> list[int]:
    return [n // parts + (k < n % parts) for k in range(parts)]
