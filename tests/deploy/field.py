"""Sites and a server as processes of this machine, on loopback, with TLS and registered keys."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fedshift import files
from fedshift.engines.flower import certs, guard, processes

ROOT = Path(__file__).parents[2]
PATH = f"{ROOT}{os.pathsep}{ROOT / 'src'}"  # what its processes import is beside these tests
NAMES = ("a", "b", "c")
DATA = "tests.toys:federation"
CLI = "import sys; from fedshift.cli import main; sys.exit(main())"


class Field:
    """Where a deployment takes place; `close` ends all that was started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = processes.free_port()
        self.started: list[subprocess.Popen[str]] = []
        self.certs = folder / "certs"
        certs.make(self.certs, NAMES, ["127.0.0.1"])

    def site(self, name: str, /, **changes: Any) -> Path:
        """A site's file."""
        path = self.folder / name / "site.toml"
        table = {
            "name": name,
            "data": DATA,
            "server": f"127.0.0.1:{self.port}",
            "device": "cpu",
            "ca": str(self.certs / "ca.crt"),
            "key": str(self.certs / f"{name}.key"),
        }
        files.write_toml(path, {**table, **changes})
        return path

    def deployment(self, name: str = "deploy", /, **changes: Any) -> Path:
        """A deployment's file."""
        path = self.folder / f"{name}.toml"
        table = {
            "sites": list(NAMES),
            "method": "fedavg",
            "model": "tests.toys:ToyNet",
            "dtype": "float64",
            "address": f"127.0.0.1:{self.port}",
            "out": name,
            "seconds": 120,
            "wait": 180,
            "ca": "certs/ca.crt",
            "certificate": "certs/server.crt",
            "key": "certs/server.key",
            "keys": "certs",
        }
        files.write_toml(path, {**table, **changes})
        return path

    def start(self, *words: str | Path, log: str) -> subprocess.Popen[str]:
        """A process: `fedshift …`, or `python …` where the first word says so."""
        first = [
            sys.executable,
            "-c",
            "import sys; from fedshift.cli import main; sys.exit(main())",
        ]
        if words[0] == "python":
            first, words = [sys.executable], words[1:]
        with (self.folder / log).open("a") as file:
            process = subprocess.Popen(
                [*first, *map(str, words)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": PATH, "OMP_NUM_THREADS": "1"},
            )
        self.started.append(process)
        return process

    def node(self, name: str, module: str = guard.MODULE, **changes: Any) -> subprocess.Popen[str]:
        """A site that connects; `module` answers for it."""
        path = self.site(name, **changes)
        if module == guard.MODULE:
            return self.start("site", "run", path, log=f"{name}.log")
        code = (
            "import sys; from pathlib import Path; from fedshift.engines.flower import node; "
            "node.run(Path(sys.argv[1]), lambda text: print(text, flush=True), module=sys.argv[2])"
        )
        return self.start("python", "-c", code, path, module, log=f"{name}.log")

    def log(self, name: str) -> str:
        """What a process has said."""
        return (self.folder / name).read_text(errors="replace")

    def connections(self, name: str) -> int:
        """How often a site's node has been let in."""
        log = self.folder / name / "state" / "node.log"
        return log.read_text(errors="replace").count("SuperNode ID:") if log.exists() else 0

    def close(self) -> None:
        """End everything, politely first."""
        for process in self.started:
            process.terminate()
        for process in self.started:
            stop(process)


def stop(process: subprocess.Popen[Any], patience: float = 30.0) -> None:
    """End a process that was asked to end."""
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def descendants(pid: int) -> list[int]:
    """A process's children and theirs."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    found, edge = [], [pid]
    while edge:
        edge = [child for child, parent in pairs if parent in edge]
        found += edge
    return found


def kill_all(process: subprocess.Popen[Any]) -> None:
    """SIGKILL a process and all that it has started, at once."""
    whole = [process.pid, *descendants(process.pid)]
    for pid in whole:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def wait_for(what: Any, seconds: float) -> Any:
    """The first true value of a function, or a failure when the time is over."""
    last = time.monotonic() + seconds
    while time.monotonic() < last:
        if found := what():
            return found
        time.sleep(0.2)
    raise AssertionError(f"nothing came within {seconds:g} s")


def settled(path: Path) -> dict[str, Any]:
    """A deployment's status, {} where there is none."""
    return files.read_json(path) if path.exists() else {}
