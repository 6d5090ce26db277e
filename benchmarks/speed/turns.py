"""Rounds on demand: the parent says when a process may train a round, and reads how long it took.

So several programs take turns on one machine, and what else the machine does meets them alike.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

_LEAST = 0.5  # seconds of a turn: shorter rounds are played several times, and shared out


class Turns:
    """The side of the process that trains.

    Args:
        wait: waits for the device, so that a round has ended when the clock is read.
    """

    def __init__(self, wait: Callable[[], None] = lambda: None) -> None:
        self._wait = wait
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # others print what they like: it goes where errors go
        self._data = 0
        self._spent = 0.0
        self._began: float | None = None
        self._rounds = 0

    def data_are_here(self) -> None:
        """Note the memory that the data alone take."""
        self._data = memory(os.getpid(), "VmRSS")

    def next(self, loss: float | None = None) -> bool:
        """Tell of the round that ended (of none, the first time) and wait for the next turn."""
        self._wait()
        now = time.perf_counter()
        self._rounds += 1
        if self._began is not None and now - self._began < _LEAST:
            return True
        processes = [os.getpid(), *children(os.getpid())]
        told = {
            "seconds": None if self._began is None else (now - self._began) / self._rounds,
            "cpu": (sum(map(spent, processes)) - self._spent) / self._rounds,
            "loss": loss,
            "peak": sum(memory(p, "VmHWM") for p in processes),
            "data": self._data,
            "gpu": _gpu(),
        }
        print(json.dumps(told), file=self._out, flush=True)
        goes_on = sys.stdin.readline() == "round\n"
        self._spent, self._rounds = sum(map(spent, processes)), 0
        self._began = time.perf_counter()
        return goes_on


def children(process: int) -> list[int]:
    """All processes that a process started, and theirs."""
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            own = [int(p) for p in task.read_text().split()]
        except OSError:  # it has ended
            continue
        for child in own:
            found += [child, *children(child)]
    return found


def spent(process: int) -> float:
    """Seconds of the processor that a process took (0 where it has ended)."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: int, kind: str) -> int:
    """Bytes of a process: "VmRSS" now, "VmHWM" at most (0 where it has ended)."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(kind)), 0)


def _gpu() -> int:
    """The most bytes that this process's tensors took on the GPU."""
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
