"""The two apps as deployments run them: a site from its file, a server from its deployment's.

Where the files are stands in the environment that `node` and `deploy` give their processes, not in
anything that comes over the network.
"""

from __future__ import annotations

import dataclasses
import hmac
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedshift import files, methods
from fedshift.engines.flower import roll
from fedshift.engines.flower.apart import Apart
from fedshift.engines.flower.apps import GridCarrier, client_app, server_app
from fedshift.engines.flower.codec import Rejected
from fedshift.engines.flower.config import Deployment, SiteConfig
from fedshift.engines.flower.secagg.terms import Secure, secure_of
from fedshift.engines.flower.server import ServerRun
from fedshift.engines.flower.site import Site
from fedshift.errors import BadRun, FedshiftError
from fedshift.federation import Federation
from fedshift.models import ModelSpec
from fedshift.protocol import Protocol
from fedshift.run import Line, Run

SITE = "FEDSHIFT_SITE"
DEPLOYMENT = "FEDSHIFT_DEPLOYMENT"
TOKEN = "FEDSHIFT_TOKEN"


def site() -> Site:
    """The site of this machine."""
    told = SiteConfig.read(Path(os.environ[SITE]))
    return Site(
        told.name,
        told.federation,
        told.path(told.state),
        told.allow,
        told.device,
        told.require_secure,
        told.identity,
        told.path(told.pretrained) if told.pretrained else None,
    )


def play(grid: Grid, config: Mapping[str, Any]) -> None:
    """Play the deployment of this server, or go on with it."""
    if not hmac.compare_digest(str(config.get("token", "")), os.environ[TOKEN]):
        raise BadRun("a run was asked for by somebody else than fedshift deploy: refused")
    told = Deployment.read(Path(os.environ[DEPLOYMENT]))
    status = Status(told)
    try:
        status.say("waiting for sites")
        carrier = GridCarrier(grid, told.sites, registered=bool(told.ca))
        carrier.gather(told.min_sites, told.wait, status.say)
        federation = enrol(told, carrier)
        run = server_run(told, federation, carrier, status)
        status.say("training")
        run.play(status.round)
        report(run)
        status.end("ended", f"weights {run.weights_sha256}")
    except FedshiftError as error:
        status.end("stopped", str(error))
    except BaseException as error:
        status.end("stopped", f"{type(error).__name__}: {error}")
        raise


def enrol(told: Deployment, carrier: GridCarrier) -> Federation:
    """The federation of sites, from what they say; what they once said is kept with the run."""
    path = told.folder / "sites.json"
    known: dict[str, Any] = files.read_json(path) if path.exists() else {}
    new = {s: roll.question() for s in carrier.connected() if s not in known}
    back, missing = carrier.ask(new, told.seconds) if new else ({}, {})
    for name, packet in back.items():
        try:
            known[name] = roll.read(name, packet)
        except Rejected as error:
            missing[name] = str(error)
    if len(known) < told.min_sites:
        reasons = "; ".join(f"'{s}': {why}" for s, why in missing.items())
        raise BadRun(
            f"{len(known)} of {len(told.sites)} sites have described their data, fewer than the "
            f"{told.min_sites} that must ({reasons}): mend them and resume"
        )
    federation = roll.federation(told.name, told.sites, known, {})
    files.write_json(path, known)
    return federation


def server_run(
    told: Deployment, federation: Federation, carrier: GridCarrier, status: Status
) -> ServerRun:
    """The run, at its beginning or where it stopped."""
    options: dict[str, Any] = {
        "carrier": lambda: carrier,
        "min_sites": told.min_sites,
        "seconds": told.seconds,
        "secure": secure_of(told.secure, "the deployment's file"),
        "say": status.say,
        "warn": status.warn,
    }
    folder = told.folder / "run"
    weights = str(told.path(told.pretrained)) if told.pretrained else ""
    if (folder / "config.toml").exists():
        _check_as_begun(folder, options["secure"])
        found = ServerRun.resume(folder, federation, **options)
        assert isinstance(found, ServerRun)
        return found
    return ServerRun(
        federation,
        methods.make(told.method, told.set),
        Protocol(**told.protocol),
        ModelSpec.of(told.model, told.stages, told.head, pretrained=weights),
        seed=told.seed,
        device=told.device,
        dtype=told.dtype,
        out=folder,
        privacy=told.full_privacy(),
        **options,
    )


def _check_as_begun(folder: Path, secure: Secure | None) -> None:
    """Refuse to go on with secure aggregation where a run began without it, or the reverse."""
    begun = files.read_toml(folder / "config.toml").get("secure")
    now = None if secure is None else dataclasses.asdict(secure)
    if begun != now:
        raise BadRun(
            f"the run in {folder} was begun with [secure] {begun or 'off'}, and is to go on with "
            f"{now or 'off'}: leave that table as it was, or give another out"
        )


def report(run: Run) -> None:
    """The run's page and table, where anything was scored."""
    found = run.report()
    if any(line.get("mean") is not None for line in run.lines):
        found.save(run.out / "report.html", run.protocol.select)  # type: ignore[operator]
        found.save(run.out / "table.csv", run.protocol.select)  # type: ignore[operator]


class Status:
    """What goes on, in a file that `fedshift status` and `fedshift deploy` read."""

    def __init__(self, told: Deployment) -> None:
        self._path = told.folder / "status.json"
        self._now: dict[str, Any] = {
            "state": "starting",
            "sites": list(told.sites),
            "method": told.method,
            "pid": os.getpid(),
            "notes": [],
            "rounds": [],
        }
        self._write()

    def say(self, text: str) -> None:
        """Note what is being done."""
        self._now["state"] = "running"
        self._now["notes"].append(text)
        self._write()

    def warn(self, text: str) -> None:
        """Note what is odd."""
        self.say(f"warning: {text}")

    def round(self, run: Run, line: Line) -> None:
        """Note who took part in a round, and why others did not."""
        left_out = line["left_out"]
        there = [c for c in line["participants"] if c not in left_out]
        entry = {n: line[n] for n in ("stage", "round", "seconds", "bytes_up", "bytes_down")}
        self._now["rounds"].append({**entry, "took_part": there, "left_out": left_out})
        scored = [s for s in run.lines if s["client"] is None and s.get("mean") is not None]
        self._now["score"] = None if not scored else {n: scored[-1][n] for n in ("round", "mean")}
        self._write()

    def end(self, state: str, text: str) -> None:
        """Note how it ended."""
        self._now |= {"state": state, "message": text}
        self._write()

    def _write(self) -> None:
        files.write_json(self._path, {**self._now, "time": time.time()})


def _client() -> ClientApp:
    """The site's app, for one message."""
    return client_app(Apart(lambda node, packet: site().answer(packet)))


client = _client  # assigned, for so Flower looks for what a bundle names
server = server_app(play)
