"""A run whose clients are sites: the same `Run`, with data that are elsewhere.

`ServerRun` is a run over what sites have told of themselves (`roll.federation`); what reaches them
is any `Carrier`.
"""

from __future__ import annotations

import importlib.util
import secrets
from collections.abc import Callable
from typing import Any

from fedshift import files
from fedshift.engines import Engine
from fedshift.engines.flower.declared import Declared
from fedshift.engines.flower.remote import Carrier, Remote
from fedshift.engines.flower.secagg import covers
from fedshift.engines.flower.secagg.terms import Secure
from fedshift.errors import BadRun
from fedshift.run import Run


class ServerRun(Run):
    """A run that reaches its sites by a carrier.

    Args:
        carrier: gives what reaches the sites, when the run begins to play.
        min_sites: fewer answers than this stop the run.
        seconds: how long an exchange may take, of which a round is one, or four where it is secure.
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


def check_secure(run: Run, secure: Secure) -> None:
    """Refuse what secure aggregation cannot serve, before anybody trains."""
    for package in ("cryptography", "Crypto"):
        if importlib.util.find_spec(package) is None:
            raise BadRun(
                "secure aggregation needs cryptography and pycryptodome, which are not installed: "
                "pip install 'fedshift[flower]'"
            )
    jobs = [run._jobs(stage, run.progress) for stage in run.stages]
    for several in jobs:
        secure.least(len(several))
    if run.protocol.weights != "uniform":
        secure.width(sum(len(c.train) for c in run.federation.clients))
    first = [several[0] for several in jobs]
    covers.check(run.plan, declared(run), run.progress.server, first)


def declared(run: Run) -> Declared:
    """What sites may upload in a run."""
    sample = run.federation.clients[0].train.x
    return Declared(run.plan, tuple(sample.shape[1:]), sample.dtype)


def remote(run: Run, carrier: Carrier, min_sites: int = 1, seconds: float = 600.0) -> Remote:
    """The engine of a run whose sites a carrier reaches."""
    return Remote(
        run.plan,
        run.config(),
        carrier,
        declared(run),
        run=identity(run),
        samples={c.name: len(c.train) for c in run.federation.clients if len(c.train)},
        min_sites=min_sites,
        seconds=seconds,
        folder=None if run.out is None else run.out / "handouts",
        secure=run.secure,
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
