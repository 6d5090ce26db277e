"""The errors a user may see, and nothing else.

Every message names what is wrong, where, and the remedy. The command line prints it as the last
line of stderr and ends with code 2; only bugs show a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedshiftError(Exception):
    """Something the user can mend: the message says what, where and how."""


class UnknownName(FedshiftError, KeyError):
    """A name that nothing answers to; the message offers the nearest ones."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.4)
        there = f"known are {', '.join(known)}" if known else "there are none to choose from"
        hint = f"did you mean {' or '.join(near)}?" if near else there
        super().__init__(f"unknown {what} '{name}': {hint}")

    def __str__(self) -> str:  # KeyError would print the repr
        return str(self.args[0])


class BadValue(FedshiftError, ValueError):
    """A value outside what is allowed."""


class BadData(FedshiftError, ValueError):
    """Data that cannot be learnt from: missing, broken, or inconsistent between clients."""


class BadModel(FedshiftError, ValueError):
    """A model that does not fit the contract (stages, features, head)."""


class BadRun(FedshiftError):
    """A run folder or checkpoint that cannot be used, written or continued."""


class CannotCombine(FedshiftError, ValueError):
    """Two methods that both claim what only one of them can have."""
