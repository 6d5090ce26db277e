"""`fedshift deploy`: the server of a deployment, from its start to the end of the run."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fedshift import files
from fedshift.engines.flower import guard, processes
from fedshift.engines.flower.config import Deployment
from fedshift.errors import BadRun
from fedshift.models import initial

_START = 60.0  # seconds that the server may take to listen
_POLL = 0.5
_APP = """\
[project]
name = "fedshift-run"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "fedshift"

[tool.flwr.app.components]
serverapp = "fedshift.engines.flower.serving:server"
clientapp = "fedshift.engines.flower.serving:client"

[tool.flwr.app.config]
token = ""
"""


def run(
    path: Path,
    say: Callable[[str], None],
    resume: bool = False,
    min_sites: int | None = None,
    module: str = guard.MODULE,
) -> dict[str, Any]:
    """Serve a deployment until its run has ended; what came of it.

    Args:
        path: the deployment's file.
        say: takes lines.
        resume: go on with the run that is in its folder.
        min_sites: in the place of the file's.
        module: what serves in the place of Flower's server program.
    """
    processes.needed()
    told = Deployment.read(path)
    if min_sites is not None:
        if not 1 <= min_sites <= len(told.sites):
            raise BadRun(f"--min-sites {min_sites}: give 1 to {len(told.sites)}, all sites")
        told = dataclasses.replace(told, min_sites=min_sites)
    begun = (told.folder / "run" / "config.toml").exists()
    if begun and not resume:
        raise BadRun(
            f"{told.folder} holds a run already: go on with it (--resume), or give another out"
        )
    _check(told)
    resolved = write(told)
    token = secrets.token_hex(16)
    bin = guard.shims(told.folder / "bin", "server", module)
    env = processes.surroundings(
        told.folder / "flwr", bin, FEDSHIFT_DEPLOYMENT=str(resolved), FEDSHIFT_TOKEN=token
    )
    status = told.folder / "status.json"
    status.unlink(missing_ok=True)
    log = told.folder / "superlink.log"
    with (
        processes.stopping_on_signal(),
        processes.started(superlink(told), env, log) as process,
    ):
        _listening(told, process, log)
        say(f"the server listens at {told.address} (log: {log})")
        _connection(told)
        order([*_registering(told), _running(told, token)], env)
        return _follow(status, process, log, say)


def superlink(told: Deployment) -> list[str]:
    """The command line of the server.

    It keeps messages in memory: the run's own folder is what a server that died goes on from, and
    in a file large uploads lock out other sites and stay behind.
    """
    host, _, port = told.address.rpartition(":")
    found = [processes.program("flower-superlink"), "--host", host, "--port", port]
    if not told.ca:
        return [*found, "--insecure"]
    return [
        *found,
        *("--ssl-ca-certfile", str(told.path(told.ca))),
        *("--ssl-certfile", str(told.path(told.certificate))),
        *("--ssl-keyfile", str(told.path(told.key))),
        "--enable-supernode-auth",
    ]


def write(told: Deployment) -> Path:
    """The deployment with whole paths, as its processes read it."""
    table = dataclasses.asdict(told)
    del table["home"]
    for name in ("out", "ca", "certificate", "key", "keys", "pretrained"):
        table[name] = str(told.path(table[name])) if table[name] else ""
    for name in ("sites", "stages"):
        table[name] = list(table[name])
    path = told.folder / "deployment.toml"
    files.write_toml(path, table)
    return path


def _check(told: Deployment) -> None:
    """Refuse files that are not there, and a port that is taken, before anything starts."""
    for what in ("ca", "certificate", "key"):
        name = getattr(told, what)
        if name and not told.path(name).is_file():
            raise BadRun(f"{what}, {told.path(name)}, does not exist: see fedshift certs")
    if told.pretrained:
        initial.digest(str(told.path(told.pretrained)))
    for site in told.sites if told.keys else ():
        if not _public(told, site).is_file():
            raise BadRun(
                f"the key of site '{site}', {_public(told, site)}, does not exist: let the site "
                "make one (fedshift certs) and send its .pub file"
            )
    host, _, port = told.address.rpartition(":")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host.strip("[]"), int(port)))
        except OSError as error:
            raise BadRun(
                f"cannot listen at {told.address} ({error.strerror}): is another server running?"
            ) from None


def _public(told: Deployment, site: str) -> Path:
    return told.path(told.keys) / f"{site}.pub"


def _listening(told: Deployment, process: subprocess.Popen[bytes], log: Path) -> None:
    last = time.monotonic() + _START
    host, _, port = told.address.rpartition(":")
    here = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))
    while time.monotonic() < last:
        if process.poll() is not None:
            raise BadRun(f"the server ended with code {process.returncode}: see {log}")
        try:
            socket.create_connection((here, int(port)), timeout=1.0).close()
            return
        except OSError:
            time.sleep(0.1)
    raise BadRun(f"the server does not listen at {told.address} after {_START:g} s: see {log}")


def _connection(told: Deployment) -> None:
    """Where Flower's own commands find the server."""
    host, _, port = told.address.rpartition(":")
    here = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    link: dict[str, Any] = {"address": f"{here}:{port}"}
    if told.ca:
        link["root-certificates"] = str(told.path(told.ca))
    else:
        link["insecure"] = True
    table = {"superlink": {"default": "fedshift", "fedshift": link}}
    files.write_toml(told.folder / "flwr" / "config.toml", table)


def _app(told: Deployment) -> Path:
    """The bundle that Flower wants with a run: names alone, for no machine runs what is in it."""
    folder = told.folder / "app"
    files.write_text(folder / "pyproject.toml", _APP)
    return folder


def _registering(told: Deployment) -> list[list[str]]:
    """Commands that make the sites' keys known, each under its site's name."""
    return [
        ["supernode", "register", str(_public(told, site)), "fedshift", "--name", site]
        for site in (told.sites if told.keys else ())
    ]


def _running(told: Deployment, token: str) -> list[str]:
    """The command that starts the run."""
    return ["run", str(_app(told)), "fedshift", "-c", f'token="{token}"']


def order(commands: Sequence[Sequence[str]], env: Mapping[str, str]) -> None:
    """Give Flower commands, one after another; the first that fails is told."""
    done = subprocess.run(
        [sys.executable, "-m", "fedshift.engines.flower.orders"],
        env=dict(env),
        input=json.dumps([[*words, "--format", "json"] for words in commands]),
        capture_output=True,
        text=True,
        timeout=120 + 5 * len(commands),
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for words, (printed, raised) in zip_longest(commands, answers, fillvalue=("", done.stderr)):
        try:
            found = json.loads(printed[printed.index("{") :])
        except ValueError:
            found = {}
        if found.get("success") is not True:
            said = str(found.get("error-message") or f"{printed} {raised}"[-300:])
            reason = " ".join(said.split())[:300]
            raise BadRun(f"flwr {' '.join(words[:2])} failed: {reason}")


def _follow(
    status: Path, process: subprocess.Popen[bytes], log: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """Say what goes on until the run has ended; its last status."""
    seen = {"notes": 0, "rounds": 0}
    last = time.monotonic() + _START
    while True:
        ended = process.poll() is not None
        now = files.read_json(status) if status.exists() else {}
        for note in now.get("notes", [])[seen["notes"] :]:
            say(note)
        for entry in now.get("rounds", [])[seen["rounds"] :]:
            say(in_words(entry))
        seen = {n: len(now.get(n, [])) for n in seen}
        if now.get("state") == "ended":
            return dict(now)
        if now.get("state") == "stopped":
            raise BadRun(now["message"])
        if ended:
            raise BadRun(
                f"the server ended with code {process.returncode}: see {log}, and go on with "
                "--resume"
            )
        gone = bool(now) and not alive(now["pid"])
        if gone or (not now and time.monotonic() > last):
            raise BadRun(f"the run's process has died: see {log}, and go on with --resume")
        time.sleep(_POLL)


def in_words(entry: Mapping[str, Any]) -> str:
    """A round as a line.

    >>> in_words({"stage": "train", "round": 2, "seconds": 7.25, "took_part": ["a"],
    ...           "left_out": {"b": "no answer in time"}})
    "round 2 of 'train': a (7.2 s); not b (no answer in time)"
    """
    who = ", ".join(entry["took_part"]) or "nobody"
    out = "".join(f"; not {site} ({why})" for site, why in entry["left_out"].items())
    return f"round {entry['round']} of '{entry['stage']}': {who} ({entry['seconds']:.1f} s){out}"


def alive(pid: int) -> bool:
    """Whether a process of this machine is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
