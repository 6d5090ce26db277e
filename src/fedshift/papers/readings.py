"""What a column of a table is of a run: scores of records as numbers of the published kind."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedshift.papers.experiment import Case
from fedshift.report.read import RunRecord
from fedshift.report.select import Selection, select

_BEST = 5  # rounds that the rule "top5-test" takes


def read(case: Case, column: str, runs: Mapping[str, RunRecord], sizes: Mapping[str, int]) -> float:
    """A column of one seed: in percent, or a number of rounds (NaN: the level was not reached).

    Args:
        runs: by the client that was left out, "" for all taking part.
        sizes: of the clients' test data.
    """
    kind, _, which = case.columns[column].partition(":")
    rule = case.protocol.select
    if kind == "unseen":
        return 100 * select(runs[which], rule).unseen[which]
    if kind == "unseen-mean":
        return 100 * _mean([select(r, rule).unseen[c] for c, r in runs.items() if c])
    run = runs[""]
    if kind == "rounds":
        return _reached(run, float(which))
    if kind == "pooled":
        return 100 * _pooled(select(run, rule, "global"), sizes)
    if kind == "personal-pooled":
        return 100 * _pooled(select(run, rule, "personal"), sizes)
    if kind == "worst":
        return 100 * _worst(run, rule)
    chosen = select(run, rule)
    return 100 * (chosen.mean if kind == "mean" else chosen.scores[which])


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def _pooled(chosen: Selection, sizes: Mapping[str, int]) -> float:
    """Correct answers of all clients by their test samples."""
    total = sum(sizes[c] for c in chosen.scores)
    return math.fsum(score * sizes[c] for c, score in chosen.scores.items()) / total


def _reached(run: RunRecord, level: float) -> float:
    for r in run.scored("test", run.view):
        if (r.mean("test", run.view) or 0.0) >= level:
            return float(r.round)
    return math.nan


def _worst(run: RunRecord, rule: str) -> float:
    """The worst client's score; under "top5-test" the mean of its five best rounds."""
    if rule != "top5-test":
        return select(run, rule).worst
    least = [min(r.scores("test", run.view).values()) for r in run.scored("test", run.view)]
    return _mean(sorted(least)[-_BEST:])
