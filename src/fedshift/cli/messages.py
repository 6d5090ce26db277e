"""What is said beside a command's output: notes, warnings and errors, on stderr, a line each."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

_write: list[Callable[[str], None]] = []  # a progress bar takes lines over while it is shown


def one_line(text: str) -> str:
    """Text without line breaks.

    >>> one_line("a \\n b")
    'a b'
    """
    return " ".join(text.split())


def note(text: str) -> None:
    """Say what was chosen or done."""
    _say(f"fedshift: {one_line(text)}")


def warning(text: str) -> None:
    """Say what is odd."""
    _say(f"fedshift: warning: {one_line(text)}")


def error(text: str) -> None:
    """Say what is wrong."""
    _say(f"fedshift: error: {one_line(text)}")


def take_over(write: Callable[[str], None] | None) -> None:
    """Let a function print lines from now on (None: stderr again)."""
    _write[:] = [] if write is None else [write]


def _say(text: str) -> None:
    if _write:
        _write[0](text)
    else:
        print(text, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Print a value as the last line of stdout."""
    print(json.dumps(_plain(value), ensure_ascii=False), flush=True)


def _plain(value: Any) -> Any:
    """What JSON can hold: NaN and infinities become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
