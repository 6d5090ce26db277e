"""Which round a score is of: the selection rules, and what they make of a run.

Test data never choose a round, except under the two rules whose names say that they do; those exist
to compare with papers that report so.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from fedshift.errors import BadRun, UnknownName
from fedshift.report.read import RoundRecord, RunRecord

MEANING: Mapping[str, str] = {
    "last": "the last scored round",
    "best-val": "the round of the best mean validation score, the earliest of equals",
    "best-test": "the round of the best mean test score (chosen on test data: optimistic)",
    "top5-test": "the mean of the five rounds of best mean test score "
    "(chosen on test data: optimistic)",
}
RULES = tuple(MEANING)
VIEWS = ("global", "personal")


@dataclasses.dataclass(frozen=True)
class Selection:
    """The scores of a run under a rule.

    `view` says of which models: the "global" one, or the "personal" ones of the clients.
    `scores` has every client that trained, `unseen` those that were held out. `spread` is the
    standard deviation over the clients (divided by their number: they are all there are).
    """

    rule: str
    view: str
    rounds: tuple[int, ...]
    scores: Mapping[str, float]
    unseen: Mapping[str, float]
    mean: float
    worst: float
    spread: float


def select(run: RunRecord, rule: str = "last", view: str = "") -> Selection:
    """Apply a rule to a run: the rounds it picks, and the scores of the clients in them.

    `view` is "global" or "personal"; left out, it is the one that the method declares.

    >>> from fedshift.report.read import record
    >>> lines = [{"round": r, "client": "a", "val": v, "test": t}
    ...          for r, v, t in [(1, 0.5, 0.6), (2, 0.7, 0.65), (3, 0.7, 0.9)]]
    >>> run = record({"method": "fedavg"}, lines)
    >>> select(run, "best-val").rounds, select(run, "best-test").rounds
    ((2,), (3,))
    """
    if rule not in RULES:
        raise UnknownName("selection rule", rule, RULES)
    view = view or run.view
    if view not in VIEWS:
        raise UnknownName("view", view, VIEWS)
    tested = _final(run.scored("test", view))
    if not tested:
        what = "test scores" if view == "global" else "test scores of personal models"
        raise BadRun(f"{_where(run)} has no {what} yet: let it run to its first evaluation")
    chosen = _choose(run, rule, view, tested)
    scores = _over_rounds(chosen, view, "seen")
    values = list(scores.values())
    mean = math.fsum(values) / len(values)
    return Selection(
        rule=rule,
        view=view,
        rounds=tuple(r.round for r in chosen),
        scores=scores,
        unseen=_over_rounds(chosen, view, "unseen"),
        mean=mean,
        worst=min(values),
        spread=math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values)),
    )


def _choose(run: RunRecord, rule: str, view: str, tested: list[RoundRecord]) -> list[RoundRecord]:
    if rule == "last":
        return tested[-1:]
    if rule == "best-val":
        valid = [r for r in tested if r.scores("val", view)]
        if not valid:
            raise BadRun(
                f"{_where(run)} has no validation scores, which the rule 'best-val' needs: "
                "give the clients validation data, or take the rule 'last'"
            )
        return _best(valid, 1, lambda r: r.mean("val", view))
    return _best(tested, 1 if rule == "best-test" else 5, lambda r: r.mean("test", view))


def _final(rounds: list[RoundRecord]) -> list[RoundRecord]:
    """The rounds of the last stage that was scored: what it made is the result."""
    return [r for r in rounds if r.stage == rounds[-1].stage]


def _best(
    rounds: list[RoundRecord], count: int, score: Callable[[RoundRecord], float | None]
) -> list[RoundRecord]:
    """The rounds of highest score, the earlier of equals, in the order of rounds."""
    # Rounds come in order and sorting is stable, so of equals the earlier is taken.
    ranked = sorted(rounds, key=lambda r: -(score(r) or 0.0))
    return sorted(ranked[:count], key=lambda r: r.round)


def _over_rounds(rounds: Sequence[RoundRecord], view: str, role: str) -> dict[str, float]:
    """Each client's mean test score over rounds."""
    found: dict[str, list[float]] = {}
    for r in rounds:
        for client, score in r.scores("test", view, role).items():
            found.setdefault(client, []).append(score)
    return {client: math.fsum(v) / len(v) for client, v in found.items()}


def _where(run: RunRecord) -> str:
    return run.folder or f"the run of {run.method}"
