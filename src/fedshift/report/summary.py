"""What several seeds of one method say together: means over seeds, with their spread."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedshift.errors import BadRun
from fedshift.report.read import RunRecord
from fedshift.report.select import select


@dataclasses.dataclass(frozen=True)
class Value:
    """A mean over seeds and its sample standard deviation (None with a single seed).

    >>> Value.of([0.5, 1.0, 1.5])
    Value(mean=1.0, std=0.5, seeds=3)
    """

    mean: float
    std: float | None
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Value:
        """The mean and the standard deviation, divided by one less than their number."""
        n = len(values)
        mean = math.fsum(values) / n
        if n == 1:
            return cls(mean, None, 1)
        return cls(mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1)), n)


@dataclasses.dataclass(frozen=True)
class Summary:
    """One method over its seeds, under one selection rule; None is what was not measured."""

    method: str
    rule: str
    view: str
    seeds: tuple[int | None, ...]
    rounds: tuple[tuple[int, ...], ...]  # which rounds the rule picked, seed by seed
    mean: Value
    worst: Value
    spread: Value
    scores: Mapping[str, Value]
    unseen: Mapping[str, Value]
    bytes_up: Value | None
    bytes_down: Value | None
    seconds: Value | None


def by_method(runs: Iterable[RunRecord]) -> dict[str, list[RunRecord]]:
    """The runs of each method, methods in the order in which they come, seeds in rising order."""
    found: dict[str, list[RunRecord]] = {}
    for run in runs:
        found.setdefault(run.method, []).append(run)
    return {m: sorted(rs, key=lambda r: (r.seed is None, r.seed or 0)) for m, rs in found.items()}


def summarise(runs: Iterable[RunRecord], rule: str = "last", view: str = "") -> list[Summary]:
    """Summarise each method over its seeds; the rule picks rounds in every seed by itself.

    Where no view is given, each method's scores are of the model that it declares.
    """
    runs = list(runs)
    check_same_data(runs)
    return [_summary(method, rs, rule, view) for method, rs in by_method(runs).items()]


def check_same_data(runs: Sequence[RunRecord]) -> None:
    """Refuse to put scores side by side that are not of the same thing."""
    if not runs:
        raise BadRun("there are no runs to report: give at least one run folder")
    for what in ("data", "metric"):
        values = sorted({getattr(run, what) for run in runs})
        if len(values) > 1:
            raise BadRun(
                f"the runs are of different {what} ({', '.join(values)}): "
                "make one report for each of them"
            )


def notes(runs: Sequence[RunRecord]) -> list[str]:
    """What a reader of the numbers must know: unfinished runs, unequal protocols, warnings."""
    found = []
    for name in sorted({key for run in runs for key in run.protocol}):
        values = {repr(run.protocol.get(name)): None for run in runs}
        if len(values) > 1:
            found.append(f"protocol.{name} differs between the runs: {', '.join(values)}")
    for method, rs in by_method(runs).items():
        seeds = [run.seed for run in rs]
        if len(set(seeds)) < len(seeds):
            found.append(f"{method}: the same seed is there more than once")
        for run in rs:
            found += [f"{label(run)}: {text}" for text in _notes_of(run)]
    return found


def _notes_of(run: RunRecord) -> list[str]:
    found = []
    planned = run.protocol.get("rounds")
    done = run.rounds[-1].round if run.rounds else 0
    if isinstance(planned, int) and done < planned:
        found.append(f"unfinished, {done} of {planned} rounds")
    left_out: dict[tuple[str, str], int] = {}
    for r in run.rounds:
        for client, why in r.left_out.items():
            left_out[client, why] = left_out.get((client, why), 0) + 1
    for (client, why), count in left_out.items():
        rounds = "1 round" if count == 1 else f"{count} rounds"
        found.append(f"{client} left out of {rounds} ({why})")
    if run.config.get("dtype") in ("bf16", "tf32"):
        found.append(f"computed in {run.config['dtype']}, coarser than float32")
    if run.privacy.get("source") == "seed":
        found.append(
            "its noise comes from the seed, so that the run can be repeated, and protects nobody: "
            "for data to be protected, take it from the system (--dp-source system)"
        )
    return [*found, *run.warnings]


def epsilon_in_words(privacy: Mapping[str, Any]) -> str:
    """What privacy has cost, where a run has it.

    >>> epsilon_in_words({"epsilon": 1.23456, "delta": 1e-05})
    'epsilon 1.235 at delta 1e-05'
    >>> epsilon_in_words({"epsilon": None, "delta": 1e-05})
    'no bound on epsilon (no noise)'
    """
    if "delta" not in privacy or "epsilon" not in privacy:
        return ""
    if privacy["epsilon"] is None:
        return "no bound on epsilon (no noise)"
    return f"epsilon {privacy['epsilon']:.4g} at delta {privacy['delta']:g}"


def label(run: RunRecord) -> str:
    """What a run is called beside others: its method and seed."""
    return run.method if run.seed is None else f"{run.method}, seed {run.seed}"


def _summary(method: str, runs: Sequence[RunRecord], rule: str, view: str) -> Summary:
    chosen = [select(run, rule, view) for run in runs]
    return Summary(
        method=method,
        rule=rule,
        view=chosen[0].view,
        seeds=tuple(run.seed for run in runs),
        rounds=tuple(s.rounds for s in chosen),
        mean=Value.of([s.mean for s in chosen]),
        worst=Value.of([s.worst for s in chosen]),
        spread=Value.of([s.spread for s in chosen]),
        scores=_each([s.scores for s in chosen]),
        unseen=_each([s.unseen for s in chosen]),
        bytes_up=_known([run.per_round("bytes_up") for run in runs]),
        bytes_down=_known([run.per_round("bytes_down") for run in runs]),
        seconds=_known([run.per_round("seconds") for run in runs]),
    )


def _each(seeds: Sequence[Mapping[str, float]]) -> dict[str, Value]:
    names = {name: None for scores in seeds for name in scores}
    return {name: Value.of([s[name] for s in seeds if name in s]) for name in names}


def _known(values: Sequence[float | None]) -> Value | None:
    known = [v for v in values if v is not None]
    return Value.of(known) if known else None
