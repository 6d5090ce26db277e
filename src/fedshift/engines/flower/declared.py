"""What a site may upload in a round: the names, types and shapes that the method itself declares.

Tensors of the model are known from its plan. What a method's `report` adds is found by rehearsing
it: the server plays the client's part without a local step, on a few made-up samples, with what it
is about to send. Nothing that a site says takes part in this.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from fedshift import aggregate, keys
from fedshift.batches import Pool
from fedshift.engines.flower.codec import Like
from fedshift.engines.loop import one_thread
from fedshift.errors import BadRun, FedshiftError
from fedshift.federation import Samples
from fedshift.plan import Plan
from fedshift.tree import Tree
from fedshift.trip import Job, Trip


@dataclasses.dataclass(frozen=True)
class Expected:
    """The uploads of one round: tensors as they travel, and how the server may use the extras."""

    tensors: dict[str, Like]
    kinds: dict[str, str]


class Declared:
    """Knows what sites may upload.

    Args:
        plan: the run's plan, on the server.
        shape, dtype: of one raw sample.
    """

    def __init__(self, plan: Plan, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._plan = plan
        self._initial = {n: t.detach().clone() for n, t in plan.tensors.items()}
        samples = made_up(plan, shape, dtype)
        self._count = len(samples)
        self._trip = Trip(plan, Pool.of([samples], plan.device), mapped=False)

    def expected(self, job: Job, before: Sequence[Job]) -> Expected:
        """What comes back for a job, to somebody who was handed out what `before` holds."""
        plan = self._plan
        program = job.stage.program
        found = {}
        if program == "train":
            found = {f"model/{n}": Like.of(self._initial[n]) for n in plan.up}
        if not plan.method.has("report"):
            return Expected(found, {})
        kept = aggregate.begin_client(plan, self._initial)
        for old in before:
            kept = self._rehearse(old, kept)[0]
        _, extras, kinds = self._rehearse(job, kept)
        found |= {f"extra/{n}": Like(t.dtype, tuple(t.shape[1:])) for n, t in extras.items()}
        return Expected(found, {n: kinds[n] for n in extras})

    def _rehearse(self, job: Job, kept: Tree) -> tuple[Tree, Tree, dict[str, str]]:
        job = dataclasses.replace(job, kept=kept, place=0, samples=self._count, steps=0)
        try:
            with one_thread(self._plan.device):
                result = self._trip.play([job])
        except FedshiftError:
            raise
        except Exception as error:
            raise BadRun(
                f"'{self._plan.method.name}' cannot say what it uploads in '{job.stage.name}' "
                f"({type(error).__name__}: {error}): its `report` must work on any samples"
            ) from error
        return result.kept[0], result.extras, result.kinds


def made_up(plan: Plan, shape: tuple[int, ...], dtype: torch.dtype) -> Samples:
    """A few samples of noise, two of each class (one label each, or one for each pixel)."""
    classes = plan.facts.classes
    n = 2 * classes
    draws = keys.uniform(keys.as_tensor(keys.fold(0, "rehearsal")), (n, *shape), torch.float64)
    x = draws if dtype.is_floating_point else draws * 255
    y = torch.arange(n) % classes
    if plan.facts.task == "segmentation":
        y = y.reshape(-1, 1, 1).expand(n, *shape[-2:]).contiguous()
    return Samples(x.to(dtype), y)
