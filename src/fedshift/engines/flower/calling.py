"""Flower's node program, sooner there: `python -m fedshift.engines.flower.calling SECONDS …`.

Flower's own looks for work every three seconds, which is most of a short round. This one looks
again soon after there was some, and then less and less often, until it is as patient. SECONDS lie
between its signs of life; what follows are the words of Flower's program.
"""

from __future__ import annotations

import functools
import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

from fedshift.engines.flower import guard

FLOWERS = 30  # seconds between signs of life in Flower's own program
_WORKER = "flwr.supernode.start_client_internal"
_RETRY = "flwr.supercore.retry.http_retry"
_FIRST, _LAST, _GROWTH = 0.2, 3.0, 1.4  # pauses between looks, in seconds
_AWAY = 5  # the longest pause between calls of a server that does not answer, in seconds


def main(seconds: int) -> None:
    """Be a site's node."""
    if seconds != FLOWERS:
        for module in ("flwr.supernode.fleet_http_connection", "flwr.supercore.heartbeat"):
            guard.replace(module, "HEARTBEAT_DEFAULT_INTERVAL", seconds)
    if hasattr(importlib.import_module(_RETRY), "MAX_RETRY_DELAY"):
        guard.replace(_RETRY, "MAX_RETRY_DELAY", _AWAY)
    worker = importlib.import_module(_WORKER)
    if hasattr(worker, "_pull_and_store_message"):  # without it all works, later
        guard.replace(_WORKER, "_pull_and_store_message", eager(worker._pull_and_store_message))
    importlib.import_module("flwr.supernode.cli").flower_supernode()


def eager(look: Callable[..., Any]) -> Callable[..., Any]:
    """A look for work that comes back with some."""

    @functools.wraps(look)
    def until_there_is(**parts: Any) -> Any:
        pause = _FIRST
        while (found := look(**parts)) is None:
            time.sleep(pause)
            pause = min(_GROWTH * pause, _LAST)
        return found

    return until_there_is


if __name__ == "__main__":
    main(int(sys.argv.pop(1)))
