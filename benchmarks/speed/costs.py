"""What a round of each method costs beside FedAvg's: stacked, on a GPU, in one process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from works import Work, federation, measure

from fedshift import aggregate, methods
from fedshift.errors import FedshiftError

WORK = Work("digits-cnn, 20 clients, batch 32", "digits-cnn", 20, 640, (3, 32, 32), 32)
# Rounds of these alone are looked at; what comes before the first is short here.
SHORT: dict[str, dict[str, int]] = {
    "faug": {"gan_steps": 50},
    "fedbabu": {"tune": 0},
    "fedlsi": {"warmup_epochs": 1, "inversion_batches": 4, "inversion_steps": 50, "gan_steps": 50},
    "pfedavg": {"tune": 0},
}
LONG = {"fedlsi": 10}  # its local epochs; FedAvg's are as many beside it
OUT = {"centralized": "all data at one place: not a federation"}


def costs(until: float) -> Iterator[dict[str, Any]]:
    """A row per method: seconds of a round, the ratio to FedAvg's, seconds at the server."""
    fed = federation(WORK)
    plain = _row(fed, "fedavg", 1, None)
    yield plain
    for name in methods.names():
        if name in OUT or name == "fedavg":
            continue
        if time.monotonic() > until:
            yield {"method": name, "error": "out of time"}
            continue
        epochs = LONG.get(name, 1)
        try:
            beside = plain if epochs == 1 else _row(fed, "fedavg", epochs, None)
            settings = {f"{name}.{n}": v for n, v in SHORT.get(name, {}).items()}
            yield _row(fed, methods.make(name, settings), epochs, beside)
        except (FedshiftError, RuntimeError, SystemExit) as error:
            yield {"method": name, "error": str(error).partition("\n")[0]}


def _row(fed: Any, method: Any, epochs: int, beside: dict[str, Any] | None) -> dict[str, Any]:
    options = {"engine": "stacked", "device": "cuda"}
    with _server_timed() as server:
        rounds, warm = (3, 2) if epochs == 1 else (1, 1)
        timed = measure(WORK, fed, rounds, warm, method, epochs, **options)
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
