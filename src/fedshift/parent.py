"""Processes that do not outlive the one that started them."""

from __future__ import annotations

import ctypes
import signal
import sys

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux


def die_with_parent(how: signal.Signals = signal.SIGTERM) -> None:
    """Let the system send this process a signal when the one that started it is gone (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, how)
