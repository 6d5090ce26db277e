"""Who learns what: clients with data, the federation of them, and the facts a method may know.

Where data come from is in `fedshift.data`; how a batch is normalised and augmented in
`fedshift.data.augment`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedshift import task
from fedshift.data.augment import Pipeline
from fedshift.errors import BadData, UnknownName

_LONGEST = 200  # bytes of a client's name: files are called by it, and systems allow 255


@dataclasses.dataclass(frozen=True)
class Samples:
    """Inputs and labels of one split: x [N, ...] as uint8 or float, y [N] as int64.

    Where pixels are labelled, y is [N, H, W] and may be uint8. The tensors may be memory-mapped
    from disk; nothing here copies them.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

    @property
    def elsewhere(self) -> bool:
        """Whether the samples lie on another machine: the tensors then have no content."""
        return self.x.is_meta

    def take(self, index: Tensor) -> Samples:
        """The samples at the given positions."""
        return Samples(self.x[index], self.y[index])


@dataclasses.dataclass(frozen=True)
class Client:
    """One party: a name and its samples; validation and test may be empty."""

    name: str
    train: Samples
    val: Samples
    test: Samples


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a method may know of a federation: nothing that belongs to a client's data.

    `width` (of the features) and `stage_shapes` (shape of each stage's output for one sample) are
    measured on the model; `tensors` (of the built model, without content, on torch's "meta" device)
    are known once `build` is done; `clients` holds the names in their fixed order; `pipeline` is
    how raw samples become the model's inputs.
    """

    task: str
    classes: int
    shape: tuple[int, ...]
    clients: tuple[str, ...]
    width: int = 0
    stage_shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    pipeline: Pipeline = dataclasses.field(default_factory=Pipeline)
    tensors: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    metric: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", task.metric_of(self.task, self.metric))


@dataclasses.dataclass(frozen=True)
class Federation:
    """Named clients that learn one task.

    Args:
        name: how reports call it.
        clients: in the order that every sum and table keeps.
        classes: the names of the classes; their position is the label.
        pipeline: how a batch of raw samples becomes the model's input.
        task: "classification", or "segmentation" (labels are [N, H, W], 0 is the background).
        metric: what scores are: "accuracy"; "dice", or "dice-all", which counts the background too
            (where none is given, the first of the task).
        recommended: what `fedshift run` takes where the user says nothing: `model`, and fields of
            the protocol.
        scored: the clients whose test data are scored, where they are not the ones that train
            (a pooled federation).
        source: how the data can be had again ("shifted-digits", a folder…), for resuming; empty
            where that is not possible, as for a federation made from another.
    """

    name: str
    clients: tuple[Client, ...]
    classes: tuple[str, ...]
    pipeline: Pipeline = dataclasses.field(default_factory=Pipeline)
    task: str = "classification"
    metric: str = ""
    recommended: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    scored: tuple[Client, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", tuple(self.clients))
        object.__setattr__(self, "scored", tuple(self.scored) or self.clients)
        object.__setattr__(self, "metric", task.metric_of(self.task, self.metric))
        check_federation(self)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the clients, in order."""
        return tuple(c.name for c in self.clients)

    def __getitem__(self, name: str) -> Client:
        for client in self.clients:
            if client.name == name:
                return client
        raise UnknownName("client", name, self.names)

    def facts(self) -> Facts:
        """What a method may know (before a model is measured)."""
        shape = tuple(self.clients[0].train.x.shape[1:])
        shape = self.pipeline.output_shape(shape)
        return Facts(self.task, len(self.classes), shape, self.names, metric=self.metric)

    def without(self, names: Iterable[str]) -> Federation:
        """The federation without some of its clients (they stay unseen)."""
        gone = set(names)
        for name in gone:
            self[name]
        rest = tuple(c for c in self.clients if c.name not in gone)
        if not rest:
            raise BadData(
                f"holding out {', '.join(sorted(gone))} leaves no client to train on: keep one"
            )
        return dataclasses.replace(self, clients=rest, scored=(), source="")

    def pooled(self) -> Federation:
        """One client with everybody's data, scored on every client's own test data."""
        everyone = Client(
            "pooled",
            *(
                _concatenate([getattr(c, split) for c in self.clients])
                for split in ("train", "val", "test")
            ),
        )
        return dataclasses.replace(self, clients=(everyone,), scored=self.clients, source="")

    def map(self, change: Callable[[Client], Client]) -> Federation:
        """The federation with every client changed by a function."""
        return dataclasses.replace(
            self, clients=tuple(map(change, self.clients)), scored=(), source=""
        )


def _concatenate(parts: list[Samples]) -> Samples:
    return Samples(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]))


def finite(x: Tensor) -> bool:
    """Whether no number is NaN or infinite; samples larger than memory are looked at in pieces.

    >>> finite(torch.tensor([1.0, float("nan")]))
    False
    """
    if not x.is_floating_point():
        return True
    pieces = (x[start : start + 1024] for start in range(0, len(x), 1024))
    return all(bool(torch.isfinite(piece).all()) for piece in pieces)


def check_federation(fed: Federation) -> None:
    """Refuse what cannot be learnt from, naming the client and the remedy."""
    if not fed.clients:
        raise BadData(f"federation '{fed.name}' has no clients: give it at least one")
    _check_names(fed)
    first = fed.clients[0].train.x
    for client in fed.clients:
        if len(client.train) == 0 and not client.train.elsewhere:
            raise BadData(
                f"client '{client.name}' of '{fed.name}' has no training data: "
                "give it some, or leave the client out"
            )
        for split in ("train", "val", "test"):
            _check_samples(fed, client.name, split, getattr(client, split), first)


def _check_names(fed: Federation) -> None:
    for what, names in (("clients", fed.names), ("classes", fed.classes)):
        if len(set(names)) < len(names):
            twice = next(n for n, count in Counter(names).items() if count > 1)
            raise BadData(f"federation '{fed.name}' has two {what} named '{twice}': rename one")
    for name in fed.names:
        strange = not name or name != name.strip() or any(c in name for c in "/\\\0\n")
        if strange or name[0] == "." or len(name.encode(errors="replace")) > _LONGEST:
            raise BadData(f"client name '{name}' cannot be a file name: rename the client")


def _check_samples(fed: Federation, name: str, split: str, s: Samples, first: Tensor) -> None:
    where = f"client '{name}' of '{fed.name}' ({split})"
    if len(s.x) != len(s.y):
        raise BadData(f"{where} has {len(s.x)} samples but {len(s.y)} labels: they must pair up")
    if len(s) == 0 or s.elsewhere:
        return
    other = f"but those that '{fed.clients[0].name}' trains on have"
    if s.x.shape[1:] != first.shape[1:]:
        raise BadData(
            f"{where} has samples of shape {tuple(s.x.shape[1:])}, {other} "
            f"{tuple(first.shape[1:])}: resize them to one shape"
        )
    if s.x.is_floating_point() != first.is_floating_point():  # uint8 is scaled, floats are not
        raise BadData(
            f"{where} has samples of type {s.x.dtype}, {other} {first.dtype}: give uint8 (0 to "
            "255) or floats for all"
        )
    if not finite(s.x):
        raise BadData(f"{where} holds NaN or infinite values: clean or drop those samples")
    if s.y.is_floating_point() or s.y.is_complex() or s.y.dtype == torch.bool:
        raise BadData(f"{where} has labels of type {s.y.dtype}: labels must be whole numbers")
    wanted = (len(s), *s.x.shape[2:]) if fed.task == "segmentation" else (len(s),)
    if tuple(s.y.shape) != wanted:
        raise BadData(
            f"{where} has labels of shape {list(s.y.shape)}, not {list(wanted)}: {fed.task} takes "
            f"one whole number for each {'pixel' if len(wanted) > 1 else 'sample'}"
        )
    low, high = int(s.y.min()), int(s.y.max())
    if low < 0 or high >= len(fed.classes):
        wrong = low if low < 0 else high
        raise BadData(
            f"{where} has a label {wrong}, outside 0 to {len(fed.classes) - 1}: "
            f"the federation has {len(fed.classes)} classes"
        )
