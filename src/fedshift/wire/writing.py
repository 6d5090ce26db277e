"""From what was seen of a run to items: names, shapes, bytes, kinds and uses."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from fedshift.federation import Client
from fedshift.method import Stage
from fedshift.plan import Plan
from fedshift.trip import Job, Result
from fedshift.wire.items import Item
from fedshift.wire.needs import Needs

_NUMBER = 8  # bytes of a number in a payload
_NORM = {"running_mean", "running_var", "num_batches_tracked"}  # torch's names


@dataclasses.dataclass(frozen=True)
class Seen:
    """What went out and came back in a round, and what the server needed of it."""

    stage: Stage
    jobs: Sequence[Job]
    result: Result
    needs: Needs


class Writer:
    """Writes items of what was seen.

    Args:
        plan: of the run.
        own: names of the tensors of the network itself.
    """

    def __init__(self, plan: Plan, own: Collection[str]) -> None:
        self._plan, self._own = plan, own
        parameters = {name for name, _ in plan.model.named_parameters()}
        self._moving = _NORM | {_last(name) for name in plan.tensors if name not in parameters}

    def everything(self, rounds: Sequence[Seen]) -> list[Item]:
        """What crossed, stage by stage, and what a client holds after the last round."""
        found: list[Item] = []
        for _, several in itertools.groupby(rounds, lambda seen: seen.stage.name):
            found += self._stage(list(several))
        return [*found, *self._kept(rounds[-1].result)]

    def _stage(self, rounds: Sequence[Seen]) -> list[Item]:
        """Each item with its rounds; how it was used in the last of them counts."""
        found: dict[tuple[str, str, tuple[int, ...]], Item] = {}
        needs = rounds[-1].needs
        for k, seen in enumerate(rounds, start=1):
            # whoever tunes gets the model once and then goes on with its own
            model = () if seen.stage.program == "tune" and k > 1 else self._model_down(seen)
            for item in (*model, *self._payload(seen), *self._up(seen, needs)):
                place = item.way, item.name, item.shape
                before = found[place].rounds if place in found else ()
                found[place] = dataclasses.replace(item, stage=seen.stage.name, rounds=(*before, k))
        return list(found.values())

    def _model_down(self, seen: Seen) -> Iterator[Item]:
        model = seen.jobs[0].model
        for name in self._plan.down:
            yield self._of_model("down", name, model[name], "alike")

    def _payload(self, seen: Seen) -> Iterator[Item]:
        first, *others = (job.payload for job in seen.jobs)
        # the weights of a client's own network are its own, whichever of them happen to be equal
        own = {
            _folder(name)
            for p in others
            for name, t in first.tensors.items()
            if name not in p.tensors or not torch.equal(t, p.tensors[name])
        }
        for name, t in first.tensors.items():
            yield self._tensor("down", name, t, "own" if _folder(name) in own else "alike")
        for name, value in first.numbers.items():
            use = "alike" if all(value == p.numbers.get(name) for p in others) else "own"
            yield Item("down", name, (), _NUMBER, self._declared(name) or "number", use)

    def _up(self, seen: Seen, needs: Needs) -> Iterator[Item]:
        """What a client sends: its model, its report, its number of samples where that counts."""
        for name, stacked in seen.result.model.items():
            use = "individual" if needs.models else "mean"
            yield self._of_model("up", name, stacked[0], use)
        for name, stacked in seen.result.extras.items():
            yield self._tensor("up", name, stacked[0], seen.result.kinds[name])
        if needs.samples:
            yield Item("up", "number of samples", (), _NUMBER, "statistics", "individual")

    def _kept(self, result: Result) -> Iterator[Item]:
        for name, t in result.kept[0].items():
            if name.startswith("model/"):
                yield self._of_model("kept", name.removeprefix("model/"), t, "")
            else:
                yield self._tensor("kept", name, t, "")

    def _of_model(self, way: str, name: str, t: Tensor, use: str) -> Item:
        """A tensor of the network, or of what a method has attached to it."""
        if name not in self._own:
            return self._tensor(way, name, t, use)
        kind = "statistics" if _last(name) in self._moving else "parameters"
        return Item(way, name, tuple(t.shape), _size(t), kind, use, of_model=True)

    def _tensor(self, way: str, name: str, t: Tensor, use: str) -> Item:
        """Anything else; where the method does not say its kind, name and shape give it away."""
        kind = "parameters"
        if _last(name) in self._moving:
            kind = "statistics"
        elif way == "kept" and not name.startswith("tuned/") and "/" in name:
            kind = "state"
        elif t.numel() == 1 and "/" in name:
            kind = "number"
        return Item(way, name, tuple(t.shape), _size(t), self._declared(name) or kind, use)

    def _declared(self, name: str) -> str:
        """What a method says of "METHOD/…", or of a tensor that it has attached to the model."""
        parts = self._plan.method.parts
        names = [name] if "/" in name else [f"{p.name}/{name}" for p in parts]
        kinds = (self._plan.method.content(n) for n in names)
        return next((k for k in kinds if k != "parameters"), "")


def handed_over(client: Client) -> list[Item]:
    """Where one party has all data, these are what crosses."""
    return [
        Item(
            way="up",
            name=f"all training {what} of '{client.name}'",
            shape=tuple(t.shape),
            bytes=_size(t),
            kind="raw data",
            use="individual",
            stage="train",
            rounds=(1,),
        )
        for what, t in (("inputs", client.train.x), ("labels", client.train.y))
    ]


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _size(t: Tensor) -> int:
    return t.numel() * t.element_size()
