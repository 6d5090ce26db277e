"""Playing a run to its end, as every command that trains does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedshift import files, together
from fedshift.cli import progress, result
from fedshift.run import Interrupted, Run


def play(run: Run, title: str = "") -> Run:
    """Play a run to its end, with a progress bar, and write its page."""
    with resumable("run", run.out):
        play_all([run], title)
    return run


def play_all(runs: Sequence[Run], title: str = "") -> None:
    """Play runs that differ in their seed alone, with one progress bar, and write their pages."""
    with progress.bar(runs[0], title) as on_round:
        together.play(runs, on_round)
    for run in runs:
        if run.out is not None:
            result.write(run.report().runs, run.out, run.protocol.select)


@contextmanager
def resumable(command: str, folder: Path | None, holds: str = "config.toml") -> Iterator[None]:
    """Let Ctrl-C name the command that continues, from when the folder holds what that needs."""
    try:
        yield
    except KeyboardInterrupt:
        if folder is None or not any(folder.glob(holds)):
            raise
        again = files.resuming(folder, command)
        raise Interrupted(f"interrupted; continue with: {again}") from None
