"""A bar over the rounds of a run with its scores, or over things; terminals only."""

from __future__ import annotations

import functools
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
    rounds = sum(stage.rounds for stage in run.stages)
    with _shown(title or run.method.name, rounds, _played(run)) as update:

        def on_round(run: Run, line: dict[str, Any]) -> None:
            # not every round is scored
            scores = {} if line["mean"] is None else {"scores": _scores(line)}
            update(completed=_played(run), **scores)

        yield on_round


@contextmanager
def count(total: int, title: str) -> Iterator[Callable[[], None]]:
    """What to call after each of so many things; where stderr is no terminal, it does nothing."""
    with _shown(title, total, 0) as update:
        yield lambda: update(advance=1)


@contextmanager
def _shown(title: str, total: int, completed: int) -> Iterator[Callable[..., None]]:
    """A bar, and what changes it."""
    if not sys.stderr.isatty():
        yield lambda **changes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    scores = TextColumn("{task.fields[scores]}", markup=False)
    with Progress(*columns, scores, Left(), console=console, transient=True) as progress:
        task = progress.add_task(title, total=total, completed=completed, scores="")

        def write(text: str) -> None:
            console.print(text, markup=False, highlight=False, soft_wrap=True)

        messages.take_over(write)
        try:
            yield functools.partial(progress.update, task)
        finally:
            messages.take_over(None)


def _played(run: Run) -> int:
    """Rounds done, of all kinds."""
    return sum(s.rounds for s in run.stages[: run.progress.stage]) + run.progress.round


def _scores(line: dict[str, Any]) -> str:
    return f"mean {100 * line['mean']:.1f} worst {100 * line['worst']:.1f}"
