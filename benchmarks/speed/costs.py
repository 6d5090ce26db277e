"""What a round of each method costs beside FedAvg's: stacked, on a GPU, in one process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from works import Work, federation, measure

from fedshift import aggregate, methods

WORK = Work("digits-cnn, 20 clients, batch 32", "digits-cnn", 20, 640, (3, 32, 32), 32)
METHODS = (
    "fedprox",
    "scaffold",
    "fedbn",
    "mixup",
    "fedfa",
    "fedfa-plus",
    "fedbr",
    "fraug",
    "fedgenp",
)
# FedLSI's stages before training are short here; its training rounds are those of the defaults.
SHORT = {
    "warmup_epochs": 1,
    "inversion_batches": 4,
    "inversion_steps": 50,
    "gan_steps": 50,
}
LONG = 10  # local epochs of FedLSI's row, and of FedAvg's beside it


def costs() -> Iterator[dict[str, Any]]:
    """A row per method: seconds of a round, the ratio to FedAvg's, seconds at the server."""
    fed = federation(WORK)
    plain = _row(fed, "fedavg", 1, None)
    yield plain
    for name in METHODS:
        yield _row(fed, name, 1, plain)
    long = _row(fed, "fedavg", LONG, None)
    yield long
    settings = {f"fedlsi.{n}": v for n, v in SHORT.items()}
    yield _row(fed, methods.make("fedlsi", settings), LONG, long)


def _row(fed: Any, method: Any, epochs: int, beside: dict[str, Any] | None) -> dict[str, Any]:
    options = {"engine": "stacked", "device": "cuda"}
    with _server_timed() as server:
        rounds = 3 if epochs == 1 else 1
        timed = measure(WORK, fed, rounds, 2 if epochs == 1 else 1, method, epochs, **options)
    return {
        "method": timed.run.method.name,
        "epochs": epochs,
        "seconds": timed.best,
        "ratio": None if beside is None else timed.best / beside["seconds"],
        "server_seconds": min(server[-len(timed.seconds) :]),
    }


@contextmanager
def _server_timed() -> Iterator[list[float]]:
    """Seconds that the server's part of each round takes."""
    import torch

    found: list[float] = []
    plain = aggregate.absorb

    def timed(*args: Any, **kwargs: Any) -> Any:
        torch.cuda.synchronize()
        began = time.perf_counter()
        server = plain(*args, **kwargs)
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
        return server

    aggregate.absorb = timed  # type: ignore[assignment]
    try:
        yield found
    finally:
        aggregate.absorb = plain
