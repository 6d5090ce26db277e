"""What is odd about clients' data under a protocol: no reason to stop, but worth a warning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fedshift.federation import Client, Federation
from fedshift.protocol import Protocol

_TOLD = 10  # so many clients get a sentence each, more get one together


def oddities(federation: Federation, protocol: Protocol, pooled: bool = False) -> Iterator[str]:
    """Sentences about what users may not have meant.

    Args:
        federation: whose clients train.
        protocol: how they train.
        pooled: all data are at one place.

    >>> import fedshift as fs
    >>> data = fs.data.load("shifted-digits")
    >>> next(oddities(data, fs.Protocol(participation=9))).partition(",")[0]
    '9 clients were to take part in a round'
    """
    clients = federation.clients
    if protocol.participation > len(clients) and not pooled:
        yield (
            f"{protocol.participation:g} clients were to take part in a round, but "
            f"'{federation.name}' trains {len(clients)}: all take part"
        )
    yield from _of_each(
        [c for c in clients if 0 < len(c.train) < protocol.batch],
        lambda c: (
            f"client '{c.name}' has {len(c.train)} training samples, fewer than "
            f"a batch of {protocol.batch}: its batches repeat samples"
        ),
    )
    many = len(federation.classes) > 1
    yield from _of_each(
        [c for c in clients if many and _one_class(c)],
        lambda c: (
            f"client '{c.name}' has training samples of one class alone: "
            "its own model will know no other"
        ),
    )


def _of_each(clients: Sequence[Client], sentence: Callable[[Client], str]) -> Iterator[str]:
    """A sentence on each client, or, of very many, on the first."""
    if len(clients) > _TOLD:
        yield f"{sentence(clients[0])} (so it is with {len(clients) - 1} more clients)"
    else:
        yield from map(sentence, clients)


def _one_class(client: Client) -> bool:
    y = client.train.y
    return not y.is_meta and bool((y == y.reshape(-1)[0]).all())
