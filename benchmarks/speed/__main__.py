"""Seconds per round of the engines on the same work: `python benchmarks/speed [--out FILE]`.

On a GPU: the stacked engine beside the plain loop of the same program. On a CPU: two worker
processes beside one. Training only, data on the device, no evaluation. Ratios come from one process
on one machine; losses of both are compared, since a fast engine that computes something else is
worth nothing. Prints a table, and a JSON object on the last line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import fedshift as fs
from fedshift import keys
from fedshift.federation import Client, Federation, Samples


@dataclass(frozen=True)
class Work:
    """One workload: so many clients with so many samples, one local epoch each."""

    name: str
    model: str
    clients: int
    samples: int
    shape: tuple[int, int, int]
    batch: int
    lr: float = 0.01


GPU = (
    Work("fedavg-cnn, 100 clients, batch 10", "fedavg-cnn", 100, 320, (1, 28, 28), 10),
    Work("fedavg-cnn, 20 clients, batch 10", "fedavg-cnn", 20, 320, (1, 28, 28), 10),
    Work("digits-cnn, 5 clients, batch 32", "digits-cnn", 5, 640, (3, 32, 32), 32),
)
CPU = (Work("digits-cnn, 8 clients, batch 32", "digits-cnn", 8, 64, (3, 28, 28), 32),)


def federation(work: Work) -> Federation:
    """Clients with random pictures around one pattern per class: learnable, and quick to make."""
    key = keys.as_tensor(keys.fold(0, "benchmark"))
    pattern = keys.uniform(keys.fold_in(key, "pattern"), (10, *work.shape))
    clients = []
    for k in range(work.clients):
        own = keys.fold_in(key, k)
        y = keys.integers(keys.fold_in(own, "y"), 10, (work.samples,))
        noise = keys.uniform(keys.fold_in(own, "x"), (work.samples, *work.shape))
        x = ((0.5 * pattern[y] + 0.5 * noise) * 255).to(torch.uint8)
        none = Samples(x[:0], y[:0])
        clients.append(Client(f"client-{k:03d}", Samples(x, y), none, none))
    return Federation("benchmark", tuple(clients), tuple("0123456789"))


def measure(
    work: Work, fed: Federation, rounds: int, warm: int, **options: Any
) -> tuple[float, list[float]]:
    """Best seconds of a round after the warm ones, and each round's mean loss."""
    protocol = fs.Protocol(rounds=rounds + warm, batch=work.batch, lr=work.lr)
    run = fs.Run(fed, "fedavg", protocol, model=work.model, say=_to_stderr, **options)
    if run.engine_name != options["engine"]:
        raise SystemExit(f"{work.name}: asked for {options['engine']}, got {run.engine_name}")
    ends: list[float] = [time.perf_counter()]
    run.play(lambda run, line: ends.append(_now(run)))
    seconds = [b - a for a, b in pairwise(ends)][warm:]
    losses = [line["loss"]["task"] for line in run.lines if line["client"] is None]
    return min(seconds), losses


def _to_stderr(sentence: str) -> None:
    print(sentence, file=sys.stderr)


def _now(run: fs.Run) -> float:
    if run.device.type == "cuda":
        torch.cuda.synchronize(run.device)
    return time.perf_counter()


def drift(a: list[float], b: list[float]) -> float:
    """The largest relative difference of two loss curves."""
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


def on_gpu(work: Work) -> dict[str, Any]:
    """Stacked beside the plain loop, in float32; both again in float64 for one round."""
    fed = federation(work)
    torch.cuda.reset_peak_memory_stats()
    stacked, fast = measure(work, fed, rounds=5, warm=2, engine="stacked", device="cuda")
    peak = torch.cuda.max_memory_allocated()
    loop, slow = measure(work, fed, rounds=1, warm=1, engine="loop", device="cuda")
    options = {"device": "cuda", "dtype": "float64"}
    _, fast64 = measure(work, fed, rounds=1, warm=0, engine="stacked", **options)
    _, slow64 = measure(work, fed, rounds=1, warm=0, engine="loop", **options)
    return {
        **asdict(work),
        "stacked_seconds": stacked,
        "loop_seconds": loop,
        "ratio": loop / stacked,
        "loss_difference_float32": drift(fast[: len(slow)], slow),
        "loss_difference_float64": drift(fast64, slow64),
        "peak_bytes": peak,
    }


def on_cpu(work: Work) -> dict[str, Any]:
    """Two worker processes beside one, best of three rounds, equal to the bit."""
    fed = federation(work)
    one, losses_one = measure(work, fed, rounds=3, warm=1, device="cpu", engine="loop", workers=1)
    two, losses_two = measure(work, fed, rounds=3, warm=1, device="cpu", engine="loop", workers=2)
    return {
        **asdict(work),
        "one_worker_seconds": one,
        "two_workers_seconds": two,
        "ratio": one / two,
        "loss_difference": drift(losses_one, losses_two),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    chosen = parser.parse_args()
    gpu = torch.cuda.is_available() if chosen.device == "auto" else chosen.device == "cuda"
    rows = []
    for work in GPU if gpu else CPU:
        row = on_gpu(work) if gpu else on_cpu(work)
        rows.append(row)
        values = (f"{k} {v:.4g}" for k, v in row.items() if isinstance(v, float) and k != "lr")
        print(f"{work.name}: {', '.join(values)}", flush=True)
    whole = {
        "device": torch.cuda.get_device_name() if gpu else platform.processor() or "cpu",
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "rows": rows,
    }
    text = json.dumps(whole)
    if chosen.out:
        chosen.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
