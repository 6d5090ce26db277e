"""What the machine could do at best: bytes over its bandwidth, arithmetic over its rate.

A round of training must at least read every client's weights and write their gradients once a step,
and do the products of the forward and backward pass. Both rates are measured here, in float32.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from works import Work, network


@dataclass(frozen=True)
class Machine:
    """Bytes that a copy moves in a second (read and written), and operations of a product."""

    bandwidth: float
    rate: float


def measured(device: str, tries: int = 5) -> Machine:
    """The machine's rates, the best of some tries."""
    size = 1 << (30 if device == "cuda" else 27)
    a = torch.ones(size // 4, device=device)
    b = torch.empty_like(a)
    side = 8192 if device == "cuda" else 1536
    m = torch.ones((side, side), device=device)
    return Machine(
        bandwidth=2 * size / _best(lambda: b.copy_(a), device, tries),
        rate=2 * side**3 / _best(lambda: m @ m, device, tries),
    )


def _best(what: Callable[[], object], device: str, tries: int) -> float:
    seconds = []
    for _ in range(tries + 1):
        began = time.perf_counter()
        what()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def floor(work: Work, machine: Machine) -> float:
    """Seconds below which no round of this work can come on this machine, all clients stacked."""
    model = network(work)
    x = torch.zeros((work.batch, *work.shape))
    y = torch.zeros(work.batch, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(x), y).backward()
    weights = 4 * sum(p.numel() for p in model.parameters())
    steps = (work.sampled or work.clients) * -(-work.samples // work.batch)
    moved, done = steps * 2 * weights, steps * counter.get_total_flops()
    return max(moved / machine.bandwidth, done / machine.rate)
