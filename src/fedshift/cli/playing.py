"""Playing a run to its end, as every command that trains does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedshift import files
from fedshift.cli import progress, result
from fedshift.run import Interrupted, Run


def play(run: Run, title: str = "") -> Run:
    """Play a run to its end, with a progress bar, and write its page."""
    with resumable("run", run.out):
        with progress.bar(run, title) as on_round:
            run.play(on_round)
        if run.out is not None:
            result.write(run.report().runs, run.out, run.protocol.select)
    return run


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
