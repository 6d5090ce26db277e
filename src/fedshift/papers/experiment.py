"""What an experiment is: data, networks, protocols and methods, beside the published numbers.

An experiment has cases (a data set under a setting, as one block of a published table) and entries
(methods, as its rows). Every pair of them is a run for each seed, or, where clients are left out in
turn, a run for each of them too.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any

from fedshift.errors import BadValue
from fedshift.protocol import Protocol

READINGS = (
    *("mean", "pooled", "personal-pooled", "worst", "client"),
    *("unseen", "unseen-mean", "rounds"),
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A data set under a setting.

    Args:
        dataset, setting: as `published.csv` names them.
        data: a federation, as for `--data`.
        model: a network, as for `--model`.
        protocol: how they train.
        columns: what each published column is of our runs: "mean" over clients, "pooled" (clients
            weighted by their test samples), "personal-pooled" (so, of the clients' own models),
            "worst" client, "client:NAME", "unseen:NAME" (left out in turn), "unseen-mean", or
            "rounds:LEVEL" (the first scored round whose mean reaches it).
        settings: hyperparameters by "method.name"; each entry takes those of its own methods.
        part: what tells it from other cases of the same block.
        only: labels of the entries that this block has (empty: all).
        imagenet: the paper's networks begin with weights trained on ImageNet.
        rerun: what the released code gave when it was run again, by entry, in percent.
    """

    dataset: str
    setting: str
    data: str
    model: str
    protocol: Protocol
    columns: Mapping[str, str]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    part: str = ""
    only: tuple[str, ...] = ()
    imagenet: bool = False
    rerun: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, reading in self.columns.items():
            if reading.partition(":")[0] not in READINGS:
                raise BadValue(f"column '{name}' reads '{reading}', which is none of {READINGS}")

    @property
    def title(self) -> str:
        """Data set and setting in one line."""
        return ", ".join(filter(None, (self.dataset, self.setting, self.part)))

    @property
    def left_out(self) -> tuple[str, ...]:
        """The clients that are left out in turn."""
        found = (r.partition(":") for r in self.columns.values())
        return tuple(client for kind, _, client in found if kind == "unseen")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A method.

    Args:
        label: what its rows are called.
        method: a method or a composition; empty where it cannot be played, and `why` says so.
        settings: its hyperparameters by "method.name".
        published: its name in the table, where it is not the label.
        model, data: in the place of the case's.
        protocol: fields of the protocol that differ from the case's.
        view: "global" or "personal": whose scores single clients' columns show.
    """

    label: str
    method: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    published: str = ""
    model: str = ""
    protocol: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    why: str = ""

    @property
    def row(self) -> str:
        """Its name in the published table."""
        return self.published or self.label


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A table of a paper.

    Args:
        name: as it is asked for, "fedfa/table3".
        paper, table: as `published.csv` names them.
        title: one line.
        cases, entries: what is played.
        seeds: how many the paper, or the recipe, takes.
        note: what a reader must know of the paper's protocol, and of where the recipe differs.
    """

    name: str
    paper: str
    table: str
    title: str
    cases: tuple[Case, ...]
    entries: tuple[Entry, ...]
    seeds: int = 3
    note: str = ""

    def published(self, case: Case, entry: Entry) -> dict[str, tuple[float, float | None]]:
        """The published numbers of a block and a row, with their deviation, by column."""
        key = (self.paper, self.table, case.dataset, case.setting, entry.row)
        return dict(_published().get(key, {}))


@functools.cache
def _published() -> Mapping[tuple[str, ...], Mapping[str, tuple[float, float | None]]]:
    text = resources.files("fedshift.papers").joinpath("published.csv").read_text(encoding="utf-8")
    found: dict[tuple[str, ...], dict[str, tuple[float, float | None]]] = {}
    for row in csv.DictReader(text.splitlines()):
        if not row["value"]:
            continue
        key = tuple(row[n] for n in ("paper", "table", "dataset", "setting", "method"))
        std = float(row["std"]) if row["std"] else None
        found.setdefault(key, {})[row["client_or_metric"]] = (float(row["value"]), std)
    return found
