"""The lines of `metrics.jsonl`: one per client and round, and one per round with the means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedshift.evaluate import Score, summary

Line = dict[str, Any]
Losses = Mapping[str, Mapping[str, float]]


def of_round(
    stage: str,
    round: int,
    participants: Sequence[str],
    losses: Losses,
    seconds: Mapping[str, float],
    came: Mapping[str, int],
    sent: Mapping[str, int],
    left_out: Mapping[str, str],
) -> list[Line]:
    """The lines of a round that is not scored (yet).

    Args:
        stage, round: what is counted, and which it is.
        participants: who was asked to take part.
        losses, seconds: of those whose trips count.
        came, sent: bytes from and to each client.
        left_out: whose trips do not count, and why.
    """
    head = {"stage": stage, "round": round}
    clients = [
        {
            **head,
            **vars(Score(client)),
            "loss": losses.get(client),
            "bytes_up": came.get(client, 0),
            "bytes_down": sent.get(client, 0),
            "seconds": seconds.get(client),
        }
        for client in participants
    ]
    return [
        *clients,
        {
            **head,
            "client": None,
            "mean": None,
            "worst": None,
            "spread": None,
            "val": None,
            "loss": _mean(losses),
            "bytes_up": sum(came.values()),
            "bytes_down": sum(sent.values()),
            "participants": list(participants),
            "left_out": dict(left_out),
        },
    ]


def scored(lines: Sequence[Line], scores: Sequence[Score], view: str) -> list[Line]:
    """The lines with the scores of the round: those of scored clients come first."""
    *clients, whole = lines
    known = {line["client"]: line for line in clients}
    idle = {
        "stage": whole["stage"],
        "round": whole["round"],
        "loss": None,
        "bytes_up": 0,
        "bytes_down": 0,
        "seconds": None,
    }
    by_client = {s.client: s for s in scores}
    found = []
    for client in dict.fromkeys([*by_client, *known]):
        score = by_client.get(client, Score(client))
        found.append({**known.get(client, idle), **vars(score)})
    seen = [s for s in scores if s.role == "seen"]
    test = summary([s.of(view, "test") for s in seen])
    val = summary([s.of(view, "val") for s in seen])
    means = {"mean": test.mean, "worst": test.worst, "spread": test.spread, "val": val.mean}
    return [*found, {**whole, **means}]


def _mean(losses: Losses) -> dict[str, float] | None:
    names = dict.fromkeys(n for own in losses.values() for n in own)
    return {n: math.fsum(own[n] for own in losses.values()) / len(losses) for n in names} or None
