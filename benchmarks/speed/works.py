"""Workloads, their data and networks, and how long a round of them takes in one process."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import fedshift as fs
from fedshift import keys, models
from fedshift.federation import Client, Federation, Samples


@dataclass(frozen=True)
class Work:
    """One workload: so many clients with so many samples, one local epoch each.

    `sampled` clients take part in a round (0: all).
    """

    name: str
    model: str
    clients: int
    samples: int
    shape: tuple[int, int, int]
    batch: int
    sampled: int = 0
    lr: float = 0.01


_GREY, _SMALL, _LARGE = (1, 28, 28), (3, 32, 32), (3, 256, 256)
WORKS = (
    Work("cnn-20", "fedavg-cnn", 20, 320, _GREY, 10),
    Work("cnn-20-b32", "fedavg-cnn", 20, 320, _GREY, 32),
    Work("many-10000", "mlp", 10_000, 20, _GREY, 10, sampled=100),
    Work("digits-5", "digits-cnn", 5, 640, _SMALL, 32),
    Work("resnet18-10", "resnet18", 10, 128, _SMALL, 32),
    Work("alexnet-4", "alexnet-bn", 4, 64, _LARGE, 32),
    Work("many-3400", "fedavg-cnn", 3_400, 100, _GREY, 10, sampled=50),
    Work("cnn-100", "fedavg-cnn", 100, 320, _GREY, 10),
    Work("cnn-100-b32", "fedavg-cnn", 100, 320, _GREY, 32),
    Work("digits-20", "digits-cnn", 20, 640, _SMALL, 32),
    Work("cnn-1000", "fedavg-cnn", 1_000, 320, _GREY, 10),
    Work("cnn-1000-b32", "fedavg-cnn", 1_000, 320, _GREY, 32),
)
QUICK = ("cnn-20", "many-10000")
GPU_ONLY = ("cnn-1000", "cnn-1000-b32")  # minutes a round on a CPU


def federation(work: Work) -> Federation:
    """Clients with random pictures around one pattern per class: learnable, and quick to make."""
    drawing = torch.Generator().manual_seed(0)
    pattern = torch.randint(0, 128, (10, *work.shape), dtype=torch.uint8, generator=drawing)
    count = work.clients * work.samples
    y = torch.randint(0, 10, (count,), generator=drawing)
    x = torch.randint(0, 128, (count, *work.shape), dtype=torch.uint8, generator=drawing)
    x += pattern[y]
    none = Samples(x[:0], y[:0])
    parts = zip(x.split(work.samples), y.split(work.samples), strict=True)
    clients = [Client(f"c{k:05d}", Samples(*part), none, none) for k, part in enumerate(parts)]
    return Federation("benchmark", tuple(clients), tuple("0123456789"))


def tensors(work: Work) -> Callable[[int], tuple[Tensor, Tensor]]:
    """A client's inputs and labels, ready for the network, by the client's number."""
    clients = federation(work).clients
    return lambda k: (clients[k].train.x.to(torch.float32) / 255, clients[k].train.y)


def network(work: Work) -> nn.Module:
    """The network of a work with the weights that a run of seed 0 begins with."""
    return models.ModelSpec.of(work.model).build(work.shape, 10, keys.fold(0, "model"))


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
    return Timed(seconds[warm:], [line["loss"].get("task", math.nan) for line in training], run)


def _to_stderr(sentence: str) -> None:
    print(sentence, file=sys.stderr)


def drift(a: list[float], b: list[float]) -> float:
    """The largest relative difference of two loss curves."""
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))
