"""Seconds per round of the engines on the same work: `python benchmarks/speed [--out FILE]`.

On a GPU: the stacked engine beside the plain loop of the same program, and the methods beside
FedAvg. On a CPU: two worker processes beside one. Training only, data on the device, no evaluation.
Ratios come from one process on one machine; losses of both engines are compared, since a fast
engine that computes something else is worth nothing. Prints a line per row, and a JSON object on
the last line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from costs import costs
from works import Work, drift, federation, measure

GPU = (
    Work("fedavg-cnn, 100 clients, batch 10", "fedavg-cnn", 100, 320, (1, 28, 28), 10),
    Work("fedavg-cnn, 20 clients, batch 10", "fedavg-cnn", 20, 320, (1, 28, 28), 10),
    Work("digits-cnn, 5 clients, batch 32", "digits-cnn", 5, 640, (3, 32, 32), 32),
)
CPU = (Work("digits-cnn, 8 clients, batch 32", "digits-cnn", 8, 64, (3, 28, 28), 32),)


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


def rows(gpu: bool, parts: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Table and row, one after another."""
    if parts in ("all", "engines"):
        for work in GPU if gpu else CPU:
            yield "engines", (on_gpu if gpu else on_cpu)(work)
    if gpu and parts in ("all", "methods"):
        for row in costs():
            yield "methods", row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--parts", choices=("all", "engines", "methods"), default="all")
    chosen = parser.parse_args()
    gpu = torch.cuda.is_available() if chosen.device == "auto" else chosen.device == "cuda"
    whole: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if gpu else platform.processor() or "cpu",
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "engines": [],
        "methods": [],
    }
    for table, row in rows(gpu, chosen.parts):
        whole[table].append(row)
        values = (f"{k} {v:.4g}" for k, v in row.items() if isinstance(v, float) and k != "lr")
        print(f"{row.get('name') or row['method']}: {', '.join(values)}", flush=True)
        if chosen.out:  # after each row, so that a run cut short leaves what it found
            chosen.out.write_text(json.dumps(whole) + "\n")
    print(json.dumps(whole))


if __name__ == "__main__":
    main()
