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
        self._plan = plan
        self._trips = [
            Trip(plan, Pool.of([part], plan.device, resident), mapped=False) for part in parts
        ]

    def play(self, jobs: Sequence[Job]) -> Result:
        """Play the trips in order."""
        with one_thread(self._plan.device):
            return merge([self.play_one(job) for job in jobs])

    def play_one(self, job: Job) -> Result:
        """Play one trip."""
        return self._trips[job.place].play([dataclasses.replace(job, place=0)])

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


def merge(results: Sequence[Result]) -> Result:
    """Several results as one, in order."""
    if len(results) == 1:
        return results[0]

    def cat(trees: list[Tree]) -> Tree:
        return {n: torch.cat([t[n] for t in trees]) for n in trees[0]}

    return Result(
        clients=[c for r in results for c in r.clients],
        model=cat([r.model for r in results]),
        extras=cat([r.extras for r in results]),
        kinds=results[0].kinds,
        kept=[k for r in results for k in r.kept],
        losses=cat([r.losses for r in results]),
        seconds=[s for r in results for s in r.seconds],
    )
