"""A bar over the rounds of a run with the scores so far and the time left; terminals only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedshift.cli import messages

if TYPE_CHECKING:
    from fedshift.run import Run

OnRound = Callable[["Run", dict[str, Any]], None]


@contextmanager
def bar(run: Run, title: str = "") -> Iterator[OnRound]:
    """What to call after each round; where stderr is no terminal, it does nothing."""
    if not sys.stderr.isatty():
        yield lambda run, line: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    scores = TextColumn("{task.fields[scores]}", markup=False)
    with Progress(*columns, scores, Left(), console=console, transient=True) as progress:
        rounds = sum(stage.rounds for stage in run.stages)
        name = title or run.method.name
        task = progress.add_task(name, total=rounds, completed=_played(run), scores="")

        def on_round(run: Run, line: dict[str, Any]) -> None:
            progress.update(task, completed=_played(run))
            if line["mean"] is not None:  # not every round is scored
                progress.update(task, scores=_scores(line))

        def write(text: str) -> None:
            console.print(text, markup=False, highlight=False, soft_wrap=True)

        messages.take_over(write)
        try:
            yield on_round
        finally:
            messages.take_over(None)


def _played(run: Run) -> int:
    """Rounds done, of all kinds."""
    return sum(s.rounds for s in run.stages[: run.progress.stage]) + run.progress.round


def _scores(line: dict[str, Any]) -> str:
    return f"mean {100 * line['mean']:.1f} worst {100 * line['worst']:.1f}"
