"""A run whose clients are sites: the same `Run`, with data that are elsewhere.

`ServerRun` is a run over what sites have told of themselves (`roll.federation`); what reaches them
is any `Carrier`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from fedshift import files
from fedshift.engines import Engine
from fedshift.engines.flower.declared import Declared
from fedshift.engines.flower.remote import Carrier, Remote
from fedshift.run import Run


class ServerRun(Run):
    """A run that reaches its sites by a carrier.

    Args:
        carrier: gives what reaches the sites, when the run begins to play.
        min_sites: fewer answers than this stop the run.
        seconds: how long a round may take.
    """

    def __init__(
        self,
        *args: Any,
        carrier: Callable[[], Carrier],
        min_sites: int = 1,
        seconds: float = 600.0,
        **options: Any,
    ) -> None:
        self._carrier = carrier
        self._min_sites, self._seconds = min_sites, seconds
        super().__init__(*args, **{**options, "engine": "flower"})

    def _start_engine(self) -> Engine:
        return remote(self, self._carrier(), self._min_sites, self._seconds)


def remote(run: Run, carrier: Carrier, min_sites: int = 1, seconds: float = 600.0) -> Remote:
    """The engine of a run whose sites a carrier reaches."""
    sample = run.federation.clients[0].train.x
    return Remote(
        run.plan,
        run.config(),
        carrier,
        Declared(run.plan, tuple(sample.shape[1:]), sample.dtype),
        run=identity(run),
        samples={c.name: len(c.train) for c in run.federation.clients if len(c.train)},
        min_sites=min_sites,
        seconds=seconds,
        folder=None if run.out is None else run.out / "handouts",
    )


def identity(run: Run) -> str:
    """The name under which sites keep a run's state: the same after a resumption."""
    if run.out is None:
        return secrets.token_hex(16)
    path = run.out / "identity.json"
    if not path.exists():
        files.write_json(path, {"run": secrets.token_hex(16)})
    found: str = files.read_json(path)["run"]
    return found
