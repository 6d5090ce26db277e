"""What stages hand out once, kept at the server so that it can be given again.

A method may send something in a `collect` stage that clients keep and the server then forgets
(FedBR's pseudo-data, FedLSI's translator). A site that was away in that round, or that has lost its
disk since, gets it again, with its next round, and plays that stage's trip first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch

from fedshift import files
from fedshift.method import State
from fedshift.tree import under, with_prefix
from fedshift.trip import Job


@dataclasses.dataclass(frozen=True)
class Handed:
    """What one site was given in a round of a stage."""

    stage: str
    round: int
    payload: State


class Handouts:
    """All hand-outs of a run, by the number of the round and the site.

    Args:
        folder: where they are written (None: they last as long as this process).
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._all: dict[tuple[int, str], Handed] = {}
        if folder is not None and folder.is_dir():
            files.sweep(folder)
            for path in sorted(folder.glob("*.safetensors")):
                number, _, site = path.stem.partition("-")
                tensors, meta = files.load_tensors(path)
                numbers = {n: t.item() for n, t in under("number", tensors).items()}
                payload = State(under("payload", tensors), numbers)
                self._all[int(number), site] = Handed(meta["stage"], meta["round"], payload)

    def note(self, number: int, jobs: Sequence[Job]) -> None:
        """Remember what a round hands out, where it does."""
        for job in jobs:
            given = job.payload
            if job.stage.program != "collect" or not (given.tensors or given.numbers):
                continue
            self._all[number, job.client] = Handed(job.stage.name, job.round, given)
            if self._folder is not None:
                tensors = {
                    **with_prefix("payload", given.tensors),
                    **with_prefix("number", numbers_as_tensors(given)),
                }
                path = self._folder / f"{number:06d}-{job.client}.safetensors"
                files.save_tensors(path, tensors, {"stage": job.stage.name, "round": job.round})

    def due(self, site: str, number: int, version: int) -> list[Handed]:
        """What a site lacks before a round whose state is that after `version` rounds."""
        return [
            handed
            for (at, owner), handed in sorted(self._all.items(), key=lambda item: item[0])
            if owner == site and version <= at < number
        ]


def numbers_as_tensors(state: State) -> dict[str, torch.Tensor]:
    """A payload's numbers as they travel: to the last bit, also those that JSON lacks.

    >>> numbers_as_tensors(State({}, {"round": 3}))
    {'round': tensor(3)}
    """
    return {
        n: torch.tensor(v, dtype=torch.int64 if isinstance(v, int) else torch.float64)
        for n, v in state.numbers.items()
    }
