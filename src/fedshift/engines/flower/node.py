"""`fedshift site run`: a site's node, started again whenever it ends, until it is told to stop."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fedshift.engines.flower import guard, processes
from fedshift.engines.flower.config import SiteConfig
from fedshift.errors import BadRun

_FIRST, _LAST = 2.0, 60.0  # seconds between attempts
_TAIL = 4000  # bytes of a log that may say why a node ended


def run(
    path: Path,
    say: Callable[[str], None],
    once: bool = False,
    module: str = guard.MODULE,
) -> None:
    """Connect a site to its server and let it answer, until Ctrl-C.

    Args:
        path: the site's file.
        say: takes lines.
        once: give up when the node ends, instead of starting it again.
        module: what answers in the place of Flower's client program.
    """
    processes.needed()
    site = SiteConfig.read(path)
    check(site)
    state = site.path(site.state)
    door = processes.socket_path(state)
    bin = guard.shims(state / "bin", "site", module, door)
    env = processes.surroundings(state / "flwr", bin, FEDSHIFT_SITE=str(path.resolve()))
    log = state / "node.log"
    wait = _FIRST
    warm = [sys.executable, "-m", "fedshift.engines.flower.warm", module, str(door)]
    with processes.stopping_on_signal(), processes.started(warm, env, log):
        while True:
            say(f"site '{site.name}' connects to {site.server} (log: {log})")
            began, size = time.monotonic(), log.stat().st_size if log.exists() else 0
            with processes.started(command(site, once), env, log) as process:
                code = process.wait()
            told = "as when the server was started anew" if code == 0 else f"with code {code}"
            reason = why(log, size) or f"its node ended, {told}"
            if once:
                raise BadRun(f"site '{site.name}': {reason}")
            if time.monotonic() - began > _LAST:
                wait = _FIRST
            say(f"site '{site.name}': {reason}; again in {wait:g} s")
            time.sleep(wait)
            wait = min(2 * wait, _LAST)


def command(site: SiteConfig, once: bool = False) -> list[str]:
    """The command line of a site's node, which tries for ever to reach its server, or not."""
    found = [
        *(sys.executable, "-m", "fedshift.engines.flower.calling", str(site.heartbeat)),
        *("--superlink", site.server),
        *("--host", "127.0.0.1"),
        *("--port", str(processes.free_port())),
    ]
    if site.ca:
        found += ["--root-certificates", str(site.path(site.ca))]
    else:
        found += ["--insecure"]
    if once:
        found += ["--max-wait-time", "20"]
    if site.key:
        found += ["--auth-supernode-private-key", str(site.path(site.key))]
    return found


def check(site: SiteConfig) -> None:
    """Refuse files that are not there, and data that cannot be read, before anything starts."""
    for what, name in (("ca", site.ca), ("key", site.key)):
        if name and not site.path(name).is_file():
            raise BadRun(f"{what} of site '{site.name}', {site.path(name)}, does not exist")
    from fedshift.engines.flower.site import Site

    Site(site.name, site.federation, site.path(site.state), site.allow, site.device).describe()


def why(log: Path, since: int) -> str:
    """Why a node ended, from what it has logged."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(since, log.stat().st_size - _TAIL))
        text = re.sub(r"\x1b\[[0-9;]*m", "", file.read().decode(errors="replace"))
    if "2004" in text or "Failed to activate SuperNode" in text:
        return (
            "the server refused its key: have it registered (its .pub file, at the server); or a "
            "node with this key was connected a moment ago, and counts as there for a while"
        )
    if "Exit Code: 305" in text:
        return "it cannot connect to the server (not there, or one of the two without TLS)"
    for line in reversed(text.splitlines()):
        found = re.search(r"(?:ERROR|Exit Code)\W+(\S.*)", line)
        if found:
            return " ".join(found[1].split())[:200]
    return ""
