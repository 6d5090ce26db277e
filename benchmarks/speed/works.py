"""Workloads, and how long a round of them takes."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from itertools import pairwise
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


@dataclass(frozen=True)
class Timed:
    """Seconds of each round after the warm ones, and the mean losses of all."""

    seconds: list[float]
    losses: list[float]
    run: fs.Run

    @property
    def best(self) -> float:
        """The shortest round: what others do on the machine only ever adds."""
        return min(self.seconds)


def measure(
    work: Work,
    fed: Federation,
    rounds: int,
    warm: int,
    method: Any = "fedavg",
    epochs: int = 1,
    **options: Any,
) -> Timed:
    """Train, without evaluation, and look at the clock after each round of training."""
    protocol = fs.Protocol(
        rounds=rounds + warm, epochs=epochs, batch=work.batch, lr=work.lr, eval_every=10**9
    )
    run = fs.Run(fed, method, protocol, model=work.model, say=_to_stderr, **options)
    if run.engine_name != options["engine"]:
        raise SystemExit(f"{work.name}: asked for {options['engine']}, got {run.engine_name}")
    ends: list[float] = []

    def note(run: fs.Run, line: dict[str, Any]) -> None:
        if run.device.type == "cuda":
            torch.cuda.synchronize(run.device)
        ends.append(time.perf_counter())

    ends.append(time.perf_counter())
    run.play(note)
    training = [line for line in run.lines if line["client"] is None and line["stage"] == "train"]
    seconds = [b - a for a, b in pairwise(ends)][-len(training) :]
    return Timed(seconds[warm:], [line["loss"]["task"] for line in training], run)


def _to_stderr(sentence: str) -> None:
    print(sentence, file=sys.stderr)


def drift(a: list[float], b: list[float]) -> float:
    """The largest relative difference of two loss curves."""
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))
