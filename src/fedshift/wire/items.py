"""The record of what was seen: one entry for each tensor or number."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedshift.method import Stage


@dataclasses.dataclass(frozen=True)
class Item:
    """One tensor or number that one client gets, sends or keeps.

    Args:
        way: "down" to the client, "up" from it, or "kept" by it.
        name: the model's name of a tensor, or "METHOD/…" of what a method adds.
        shape: of the tensor; () is a number.
        bytes: each time that it crosses.
        kind: "parameters", "statistics", "number", the "state" that a client keeps for a method,
            or what the method says in its `content`.
        use: of what goes up, how the server uses it: it needs no more than the "mean" or "sum"
            over clients, which a secure sum can carry, or looks at each client's ("individual").
            Of what goes down: "alike" for all clients or each one's "own".
        stage: the kind of round; empty for what is kept.
        rounds: in which of the stage's rounds it crossed, counted from 1.
        of_model: whether it belongs to the network itself, and not to the method.
    """

    way: str
    name: str
    shape: tuple[int, ...]
    bytes: int
    kind: str
    use: str = ""
    stage: str = ""
    rounds: tuple[int, ...] = ()
    of_model: bool = False


@dataclasses.dataclass(frozen=True)
class Wire:
    """Everything that one client gets, sends and keeps.

    Args:
        method, data, model: names of what was played.
        clients: how many there were.
        settings: hyperparameters ("method.name") that were shortened; they change no size.
        stages: the kinds of rounds, in order, with the rounds that were played.
        items: what crossed, in this order, and then what is kept.
        pooled: the clients hand their training data over whole.
    """

    method: str
    data: str
    model: str
    clients: int
    settings: Mapping[str, Any]
    stages: tuple[Stage, ...]
    items: tuple[Item, ...]
    pooled: bool = False

    def select(self, way: str, stage: str = "", of_model: bool | None = None) -> tuple[Item, ...]:
        """The items of a way, of a stage and of the network or the method where these are given."""
        return tuple(
            i
            for i in self.items
            if i.way == way
            and stage in ("", i.stage)
            and (of_model is None or i.of_model == of_model)
        )

    def bytes(self, way: str, stage: str = "train", of_model: bool | None = None) -> int:
        """Bytes of one client in the last round of a stage."""
        last = next((s.rounds for s in self.stages if s.name == stage), 1)
        return sum(i.bytes for i in self.select(way, stage, of_model) if last in i.rounds)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it: the fields by their names, and below `stages` the bytes of each."""
        stages = [
            {
                "name": s.name,
                "program": s.program,
                "rounds": s.rounds,
                "bytes_down": self.bytes("down", s.name),
                "bytes_up": self.bytes("up", s.name),
            }
            for s in self.stages
        ]
        return {**dataclasses.asdict(self), "stages": stages}
