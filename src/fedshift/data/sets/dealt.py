"""One pool of images dealt to clients, and its test set shared out among them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedshift import keys
from fedshift.data import cache
from fedshift.data.partition import evenly, split
from fedshift.data.sets.reading import Splits
from fedshift.federation import Client, Samples


def clients(
    pool: Splits, parts: Sequence[Tensor], tests: Sequence[Samples], *, val: float, seed: int
) -> tuple[Client, ...]:
    """Clients with a part of the training images each, some of it for validation, and their tests.

    Args:
        pool: the set as it was published.
        parts: the positions of each client's training images.
        tests: the test samples of each client.
        val: share of a client's training images that is for validation.
        seed: which those are.
    """
    mapped = pool["train"].x.nbytes > cache.budget(None)
    made = []
    for k, (name, part) in enumerate(zip(numbered(len(parts)), parts)):
        own = cache.take(pool["train"], part, mapped=mapped)
        nothing = own.take(torch.tensor([], dtype=torch.int64))
        train, held = own, nothing
        if val:
            train, held, _ = split(own, (1 - val, val, 0.0), seed=keys.fold(seed, "client", k))
        made.append(Client(name, train, held, tests[k]))
    return tuple(made)


def numbered(clients: int) -> list[str]:
    """Names of clients that have none.

    >>> numbered(2)
    ['client-0', 'client-1']
    """
    digits = len(str(clients - 1))
    return [f"client-{k:0{digits}d}" for k in range(clients)]


def shared_test(test: Samples, clients: int, seed: int) -> list[Samples]:
    """A test set dealt evenly: with equal sizes the mean over clients is the score on all of it."""
    return [test.take(part) for part in evenly(test.y, clients, seed=keys.fold(seed, "test"))]


def owned_classes(test: Samples, owned: Sequence[Tensor], seed: int) -> list[Samples]:
    """FedGenP's tests: of each class that a client owns, one share of the class's test images.

    A class's share is as large for every client: its test images divided by the number of clients.
    """
    order = keys.permutation(keys.as_tensor(keys.fold(seed, "test")), len(test))
    members = [order[test.y[order] == c] for c in range(int(test.y.max()) + 1)]
    tests = []
    for k, labels in enumerate(owned):
        share = [m[k * (len(m) // len(owned)) : (k + 1) * (len(m) // len(owned))] for m in members]
        index = torch.cat([share[c] for c in torch.unique(labels).tolist()]).sort().values
        tests.append(test.take(index))
    return tests
