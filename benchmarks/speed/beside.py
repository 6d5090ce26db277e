"""One work in several programs, a process each, which take turns: their seconds side by side."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from works import Work

HERE = Path(__file__).parent
NEEDS = {"pfl": ("pfl",), "flower": ("flwr", "ray")}  # packages without which a peer cannot run
_PATIENCE = 10.0  # seconds that programs get to end by themselves


class Failed(Exception):
    """A program did not do its work; the message says why."""


class Program:
    """A process that trains a round when it is asked to."""

    def __init__(self, name: str, work: Work, device: str) -> None:
        self.name = name
        for package in NEEDS.get(name, ()):
            if importlib.util.find_spec(package) is None:
                raise Failed(f"{package} is not installed")
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "peer.py"), name, json.dumps(asdict(work)), device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *_path()])},
            start_new_session=True,  # what it starts can be ended with it
        )

    def told(self, until: float) -> dict[str, Any]:
        """What it says next: how its last round was."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._process.stdout, selectors.EVENT_READ)
            if not waiting.select(max(0.0, until - time.monotonic())):
                raise Failed("out of time")
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            last = self._errors.read().strip().rpartition("\n")[2]
            raise Failed(f"failed: {last or 'without a word'}")
        found: dict[str, Any] = json.loads(line)
        return found

    def round(self, until: float) -> dict[str, Any]:
        """Let it train one round."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `told` says why
            self._process.stdin.write(b"round\n")
            self._process.stdin.flush()
        return self.told(until)

    def hang_up(self) -> None:
        """Say that there are no more rounds."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def end(self, until: float) -> None:
        """Wait for it; who does not listen is killed, with all that it started."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, until - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._errors.close()


def beside(
    work: Work, names: Sequence[str], device: str, rounds: int, until: float
) -> dict[str, dict[str, Any]]:
    """For every program its seconds of each round after the first, or why there are none."""
    found: dict[str, dict[str, Any]] = {}
    running: dict[str, Program] = {}
    try:
        for name in names:
            _try(found, name, lambda n=name: running.__setitem__(n, Program(n, work, device)))
        for name, program in list(running.items()):
            told = _try(found, name, lambda p=program: p.told(until))
            if told:
                found[name] = {"seconds": [], "cpu": [], "data": told["data"]}
        for number in range(rounds + 1):
            began = time.monotonic()
            for name in [n for n in running if "error" not in found[n]]:
                told = _try(found, name, lambda p=running[name]: p.round(until))
                if told and number > 0:
                    row = found[name]
                    row["seconds"].append(told["seconds"])
                    row["cpu"].append(told["cpu"])
                    row |= {"loss": told["loss"], "peak": told["peak"], "gpu": told["gpu"]}
            cycle = time.monotonic() - began
            if time.monotonic() + cycle > until:
                break
    finally:
        for program in running.values():
            program.hang_up()
        patience = time.monotonic() + _PATIENCE
        for program in running.values():
            program.end(patience)
    return found


def _try(found: dict[str, dict[str, Any]], name: str, what: Any) -> Any:
    try:
        return what()
    except Failed as error:
        # rounds that were played count
        if not found.get(name, {}).get("seconds"):
            found[name] = {"error": str(error)}
        else:
            found[name]["error"] = str(error)
        return None


def _path() -> list[str]:
    return [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
