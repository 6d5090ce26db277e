"""The command line: `fedshift run`, `compare`, `list`, `show` and `predict`.

Each command is a module here. None of them imports torch before its arguments are understood, so
that help texts and complaints about options come at once.
"""

from __future__ import annotations

from fedshift.cli.entry import main

__all__ = ["main"]
