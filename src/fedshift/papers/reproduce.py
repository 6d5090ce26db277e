"""Plays an experiment, run by run, and sets what came of it beside what was published.

Every run has a folder of its own, so that the whole can be interrupted and called again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedshift import data, methods, together
from fedshift.compose import Composed
from fedshift.engines.loop import one_thread
from fedshift.errors import BadData, BadRun, UnknownName
from fedshift.federation import Federation
from fedshift.models import ModelSpec
from fedshift.papers import stand_in
from fedshift.papers.experiment import Case, Entry, Experiment
from fedshift.papers.readings import read
from fedshift.report.read import read_run
from fedshift.report.summary import Value
from fedshift.run import Run

CLOSE, SPREADS = 1.5, 2.0  # points; ours is within the larger of the two
QUICK = {"rounds": 2, "steps": 2}
Row = dict[str, Any]
Play = Callable[[Sequence[Run], str], object]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What of an experiment is played.

    Args:
        experiment: which.
        out: the folder for its runs.
        methods: labels of entries, or names of methods, which mean all their entries (empty: all
            that can be played).
        settings: titles of cases, or parts of titles, which mean all that have them (empty: all).
        seeds: how many (0: the experiment's).
        rounds: in the place of the protocol's (0: the protocol's).
        quick: two rounds of two steps, one seed, the methods' quick values; a stand-in of the same
            shape where the data are not there.
        pretrained: a file of weights, for the cases whose networks begin with ImageNet's.
        options: arguments of `Run` that say where it is computed.
    """

    experiment: Experiment
    out: Path
    methods: Sequence[str] = ()
    settings: Sequence[str] = ()
    seeds: int = 0
    rounds: int = 0
    quick: bool = False
    pretrained: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def cases(self) -> list[Case]:
        """The cases that are played."""
        titles = [c.title for c in self.experiment.cases]
        found = [
            c
            for c in self.experiment.cases
            if not self.settings or any(_about(c.title, s, titles) for s in self.settings)
        ]
        if not found:
            raise UnknownName("setting", ", ".join(self.settings), titles)
        return found

    @property
    def entries(self) -> list[Entry]:
        """The entries that are played."""
        entries = self.experiment.entries
        labels = [e.label for e in entries]
        for wanted in self.methods:
            if not any(_named(e, wanted, labels) for e in entries):
                raise UnknownName("method of this experiment", wanted, labels)
        return [
            e
            for e in entries
            if e.method and (not self.methods or any(_named(e, w, labels) for w in self.methods))
        ]

    def entries_of(self, case: Case) -> list[Entry]:
        """The entries that are played under a case."""
        return [e for e in self.entries if not case.only or e.label in case.only]

    @property
    def count(self) -> range:
        """The seeds."""
        return range(1 if self.quick else self.seeds or self.experiment.seeds)

    @property
    def complete(self) -> bool:
        """Whether everything that can be played is, as the recipe has it."""
        playable = [e for e in self.experiment.entries if e.method]
        return (
            not (self.quick or self.rounds)
            and len(self.count) >= self.experiment.seeds
            and len(self.entries) == len(playable)
            and len(self.cases) == len(self.experiment.cases)
        )


def _about(title: str, wanted: str, titles: Sequence[str]) -> bool:
    """Whether a title is the one that is wanted, or has it in it where it is no title itself."""
    return title == wanted if wanted in titles else wanted.lower() in title.lower()


def _named(entry: Entry, wanted: str, labels: Sequence[str]) -> bool:
    if wanted in labels:
        return entry.label == wanted
    return wanted.lower() in (entry.label.lower(), entry.method.lower())


def reproduce(plan: Plan, play: Play) -> list[Row]:
    """Play what is left of an experiment; the rows of the table, ours beside the published.

    Args:
        play: plays runs to their end that differ in their seed alone; the text says which.
    """
    # the few small batches of a quick run lose by several threads
    with one_thread(torch.device("cpu")) if plan.quick else contextlib.nullcontext():
        return [row for case in plan.cases for row in _block(plan, case, play)]


def _block(plan: Plan, case: Case, play: Play) -> Iterator[Row]:
    """The rows of a case."""
    found = federation(plan, case)
    sizes = {c.name: len(c.test) for c in found.clients}
    for entry in plan.entries_of(case):
        for left_out in left_out_of(case):
            _play(plan, case, entry, found, left_out, play)
        yield from rows(plan, case, entry, sizes)


def federation(plan: Plan, case: Case) -> Federation:
    """A case's data; with `quick`, a stand-in where they are not there."""
    try:
        return data.load(case.data)
    except BadData:
        if not plan.quick:
            raise
        return stand_in.federation(case)


def left_out_of(case: Case) -> tuple[str, ...]:
    """Who is left out in turn; "" is nobody."""
    kinds = {r.partition(":")[0] for r in case.columns.values()}
    everybody = ("",) if kinds - {"unseen", "unseen-mean"} else ()
    return (*everybody, *case.left_out)


def folder(plan: Plan, case: Case, entry: Entry, seed: int, left_out: str = "") -> Path:
    """Where a run lies."""
    home = plan.out / slug(case.title) / slug(entry.label) / f"seed{seed}"
    return home / f"without-{slug(left_out)}" if left_out else home


def ended(folder: Path) -> bool:
    """Whether the run in a folder was played to its end."""
    return (folder / "model.safetensors").is_file()


def _play(
    plan: Plan, case: Case, entry: Entry, found: Federation, left_out: str, play: Play
) -> None:
    """Play the seeds of an entry that have not ended, or go on with them."""
    method, protocol = made(plan, case, entry), _protocol(plan, case, entry)
    spec = ModelSpec.of(
        entry.model or case.model, pretrained=plan.pretrained if case.imagenet else ""
    )
    config = {
        "protocol": dataclasses.asdict(protocol),
        "settings": methods.settings_of(method),
        "data": found.name,
    }
    places = {seed: folder(plan, case, entry, seed, left_out) for seed in plan.count}
    begun = {seed: place for seed, place in places.items() if (place / "config.toml").is_file()}
    for place in begun.values():
        _check(place, config)

    def make(seed: int) -> Run:
        if seed in begun:
            return Run.resume(places[seed], found, spec, method)
        return Run(
            found,
            method,
            protocol,
            spec,
            seed=seed,
            out=places[seed],
            hold_out=[left_out] if left_out else (),
            checkpoint_every=max(1, protocol.rounds // 10),
            **plan.options,
        )

    without = f" without {left_out}" if left_out else ""
    for runs in together.groups(make, [s for s, place in places.items() if not ended(place)]):
        seeds = ", ".join(str(run.seed) for run in runs)
        play(runs, f"{case.title}: {entry.label} seed {seeds}{without}")


def _check(place: Path, wanted: Mapping[str, Any]) -> None:
    """Refuse a folder whose run is another one."""
    config = read_run(place).config
    if any(config.get(n) != v for n, v in wanted.items()):
        raise BadRun(
            f"{place} holds a run that was configured otherwise: choose another folder with --out"
        )


def made(plan: Plan, case: Case, entry: Entry) -> Composed:
    """The method of an entry, with those of the case's settings that are about it."""
    own = {methods.method_class(part).name for part in methods.split(entry.method)}
    settings = {n: v for n, v in case.settings.items() if n.partition(".")[0] in own}
    if plan.quick:
        from fedshift.hparam import hypers

        for name in own:
            for n, h in hypers(methods.method_class(name)).items():
                if h.quick is not None:
                    settings[f"{name}.{n}"] = h.quick
    return methods.make(entry.method, {**settings, **entry.settings})


def _protocol(plan: Plan, case: Case, entry: Entry) -> Any:
    changes: dict[str, Any] = dict(entry.protocol)
    if plan.rounds:
        changes["rounds"] = plan.rounds
    if plan.quick:
        changes |= {**QUICK, "eval_every": QUICK["rounds"]}
    return case.protocol.replace(**changes)


def rows(plan: Plan, case: Case, entry: Entry, sizes: Mapping[str, int]) -> Iterator[Row]:
    """The rows of an entry, of its runs as far as they were played.

    Args:
        sizes: of the clients' test data.
    """
    seeds = [
        {c: read_run(folder(plan, case, entry, seed, c)) for c in left_out_of(case)}
        for seed in plan.count
    ]
    published = plan.experiment.published(case, entry)
    for column, reading in case.columns.items():
        found = [v for runs in seeds if not math.isnan(v := read(case, column, runs, sizes))]
        ours = Value.of(found) if found else None
        paper = published.get(column, (None, None))[0]
        points = not reading.startswith("rounds")
        yield {
            "method": entry.label,
            "setting": case.title,
            "client": column,
            "paper": paper,
            "ours": None if ours is None else ours.mean,
            "std": None if ours is None else ours.std,
            "within": within(paper, ours) if points else None,
            "rerun": case.rerun.get(entry.label) if reading in ("mean", "pooled") else None,
        }


def within(paper: float | None, ours: Value | None) -> bool | None:
    """Whether ours lies within 1.5 points, or two of its standard deviations, of the published.

    >>> within(80.0, Value(81.6, 1.0, 3)), within(80.0, Value(81.6, 0.5, 3)), within(None, None)
    (True, False, None)
    """
    if paper is None or ours is None:
        return None
    return abs(ours.mean - paper) <= max(CLOSE, SPREADS * (ours.std or 0.0))


def slug(text: str) -> str:
    """Text as a name for a folder.

    >>> slug("100% data, alpha=0.1")
    '100pc-data-alpha-0.1'
    """
    return re.sub(r"[^\w.+^-]+", "-", text.replace("%", "pc")).strip("-.")[:100] or "all"
