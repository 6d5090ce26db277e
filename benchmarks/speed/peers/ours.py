"""fedshift as its users get it: the engine and the number of processes are chosen by its rule."""

from __future__ import annotations

import sys
from typing import Any

from turns import Turns
from works import Work, federation

import fedshift as fs

_ROUNDS = 10_000  # more than are played: rounds end when turns do


class _Over(Exception):
    """No more turns."""


def play(work: Work, device: str, turns: Turns, option: str = "") -> None:
    """Train; "one": in one process; "tf32": what torch's other programs do with convolutions."""
    fed = federation(work)
    turns.data_are_here()
    protocol = fs.Protocol(
        rounds=_ROUNDS,
        batch=work.batch,
        lr=work.lr,
        participation=float(work.sampled or 1.0),
        eval_every=10**9,
    )
    run = fs.Run(
        fed,
        "fedavg",
        protocol,
        model=work.model,
        device=device,
        workers=1 if option == "one" else None,
        dtype="tf32" if option == "tf32" else "float32",
        say=lambda sentence: print(sentence, file=sys.stderr),
    )

    def after(run: fs.Run, line: dict[str, Any]) -> None:
        if not turns.next(line["loss"]["task"]):
            raise _Over

    if turns.next():
        try:
            run.play(after)
        except _Over:
            return
