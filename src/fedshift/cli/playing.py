"""Playing a run to its end, as every command that trains does."""

from __future__ import annotations

from fedshift.cli import progress, result
from fedshift.run import Run


def play(run: Run, title: str = "") -> Run:
    """Play a run to its end, with a progress bar, and write its page."""
    with progress.bar(run, title) as on_round:
        run.play(on_round)
    if run.out is not None:
        result.write(run.report().runs, run.out, run.protocol.select)
    return run
