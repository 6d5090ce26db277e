"""One client after another in this process, on one thread of the CPU or on a GPU.

On a CPU a trip always runs on one thread: so its result does not depend on how many worker
processes share the work (`fedshift.engines.workers`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from fedshift.batches import Pool
from fedshift.federation import Samples
from fedshift.plan import Plan
from fedshift.tree import Tree
from fedshift.trip import Job, Result, Trip


class Loop:
    """Plays trips one after another.

    Args:
        plan: what is the same for all trips.
        parts: each client's training samples.
        resident: keep the data on the device (False: carry each batch there).
    """

    name = "loop"

    def __init__(self, plan: Plan, parts: Sequence[Samples], resident: bool = True) -> None:
        self._plan, self._parts, self._resident = plan, parts, resident
        self._pools: dict[int, Pool] = {}
        self._trip: Trip | None = None

    def play(self, jobs: Sequence[Job]) -> Result:
        """Play the trips in order."""
        whole = Gathered(len(jobs))
        with one_thread(self._plan.device):
            for k, job in enumerate(jobs):
                whole.put(k, self.play_one(job))
        return whole.result([j.client for j in jobs])

    def play_one(self, job: Job) -> Result:
        """Play one trip."""
        return self.trip(job.place).play([dataclasses.replace(job, place=0)])

    def trip(self, place: int) -> Trip:
        """The one trip, over a client's data, which come to the device the first time."""
        if place not in self._pools:
            self._pools[place] = Pool.of([self._parts[place]], self._plan.device, self._resident)
        if self._trip is None:
            self._trip = Trip(self._plan, self._pools[place], mapped=False)
        self._trip.pool = self._pools[place]
        return self._trip

    def close(self) -> None:
        """Nothing to end."""


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Compute on one CPU thread for a while."""
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Gathered:
    """The results of a round while they come in: each is copied once, into its row."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._stacked: dict[str, Tree] = {"model": {}, "extras": {}, "losses": {}}
        self._kept: list[Tree] = [{} for _ in range(count)]
        self._seconds = [0.0] * count
        self._kinds: dict[str, str] = {}

    def put(self, k: int, result: Result) -> None:
        """Take the result of one trip, as entry k of the round's."""
        for kind, stacked in self._stacked.items():
            for name, rows in getattr(result, kind).items():
                if name not in stacked:
                    stacked[name] = rows.new_empty((self._count, *rows.shape[1:]))
                stacked[name][k].copy_(rows[0])
        self._kept[k] = result.kept[0]
        self._seconds[k] = result.seconds[0]
        self._kinds |= result.kinds

    def result(self, clients: list[str]) -> Result:
        """All of them as one."""
        return Result(
            clients=clients,
            kinds=self._kinds,
            kept=self._kept,
            seconds=self._seconds,
            **self._stacked,
        )
