"""fedshift's engines beside each other: stacked and loop on a GPU, two workers and one on a CPU.

Losses are compared too, since a fast engine that computes something else is worth nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from works import Work, drift, federation, measure

GPU = (
    Work("fedavg-cnn, 100 clients, batch 10", "fedavg-cnn", 100, 320, (1, 28, 28), 10),
    Work("fedavg-cnn, 20 clients, batch 10", "fedavg-cnn", 20, 320, (1, 28, 28), 10),
    Work("digits-cnn, 5 clients, batch 32", "digits-cnn", 5, 640, (3, 32, 32), 32),
)
CPU = (Work("digits-cnn, 8 clients, batch 32", "digits-cnn", 8, 64, (3, 28, 28), 32),)


def engines(gpu: bool) -> Iterator[dict[str, Any]]:
    """A row per work."""
    for work in GPU if gpu else CPU:
        yield (on_gpu if gpu else on_cpu)(work)


def on_gpu(work: Work) -> dict[str, Any]:
    """Stacked beside the plain loop, in float32; both again in float64 for one round."""
    fed = federation(work)
    torch.cuda.reset_peak_memory_stats()
    stacked = measure(work, fed, rounds=5, warm=2, engine="stacked", device="cuda")
    peak = torch.cuda.max_memory_allocated()
    loop = measure(work, fed, rounds=1, warm=1, engine="loop", device="cuda")
    options: dict[str, Any] = {"rounds": 1, "warm": 0, "device": "cuda", "dtype": "float64"}
    exact = measure(work, fed, engine="stacked", **options)
    slow = measure(work, fed, engine="loop", **options)
    return {
        **asdict(work),
        "stacked_seconds": stacked.best,
        "loop_seconds": loop.best,
        "ratio": loop.best / stacked.best,
        "loss_difference_float32": drift(stacked.losses[: len(loop.losses)], loop.losses),
        "loss_difference_float64": drift(exact.losses, slow.losses),
        "peak_bytes": peak,
    }


def on_cpu(work: Work) -> dict[str, Any]:
    """Two worker processes beside one, best of three rounds, equal to the bit."""
    fed = federation(work)
    options: dict[str, Any] = {"rounds": 3, "warm": 1, "device": "cpu", "engine": "loop"}
    one, two = (measure(work, fed, workers=n, **options) for n in (1, 2))
    return {
        **asdict(work),
        "one_worker_seconds": one.best,
        "two_workers_seconds": two.best,
        "ratio": one.best / two.best,
        "loss_difference": drift(one.losses, two.losses),
    }
