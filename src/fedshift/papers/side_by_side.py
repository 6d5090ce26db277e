"""Rows of experiments side by side, each in a process of its own.

Small networks leave most of a GPU idle, and several programs at once fill it. A process plays one
row of one block by the command `fedshift reproduce` itself, told to play that row alone; so its
runs lie where they always do, go on where they stopped, and no two processes share one.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import IO

from fedshift.papers.experiment import Case, Entry
from fedshift.papers.reproduce import Plan, ended, folder, left_out_of
from fedshift.parent import die_with_parent

PATIENCE = 30.0  # seconds that a process gets to save what it has when it is told to stop
_LOOK = 0.05  # seconds between looks at who has ended


@dataclasses.dataclass(frozen=True)
class Part:
    """A row of a block, over all seeds of a plan."""

    plan: Plan
    case: Case
    entry: Entry

    @property
    def title(self) -> str:
        """Block and row in one line."""
        return f"{self.case.title}: {self.entry.label}"

    @property
    def ended(self) -> bool:
        """Whether all its runs were played to their ends."""
        return all(
            ended(folder(self.plan, self.case, self.entry, seed, left_out))
            for seed in self.plan.count
            for left_out in left_out_of(self.case)
        )

    @property
    def words(self) -> list[str]:
        """The arguments of `fedshift` that play it."""
        plan = self.plan
        numbers = {"seeds": len(plan.count), "rounds": plan.rounds}
        options = {"out": plan.out, "pretrained": plan.pretrained, **numbers, **self._machine}
        return [
            "reproduce",
            plan.experiment.name,
            f"--settings={self.case.title}",
            f"--methods={self.entry.label}",
            *(f"--{name}={value}" for name, value in options.items() if value),
            *(["--quick"] if plan.quick else []),
        ]

    @property
    def _machine(self) -> dict[str, object]:
        """Where it is computed: one process, unless more were asked for."""
        known = ("engine", "device", "dtype", "workers")
        return {"workers": 1} | {n: v for n in known if (v := self.plan.options.get(n))}


@dataclasses.dataclass(frozen=True)
class Ended:
    """A part whose process has ended.

    Args:
        part: which.
        seconds: how long the process took.
        error: why it failed, in a line ("": it did not).
        stopped: whether it was told to stop before its end.
    """

    part: Part
    seconds: float
    error: str = ""
    stopped: bool = False


def parts(plan: Plan) -> list[Part]:
    """The rows of a plan, block by block."""
    return [Part(plan, case, entry) for case in plan.cases for entry in plan.entries_of(case)]


def command(part: Part) -> list[str]:
    """What plays a part."""
    return [sys.executable, "-m", "fedshift", *part.words]


def play(parts: Sequence[Part], jobs: int, seconds: float = 0.0) -> Iterator[Ended]:
    """Play parts in order, some at a time, and tell of each as it ends; those that have are left.

    Who stops to listen (or Ctrl-C) stops them all; every run goes on from where it was saved.

    Args:
        jobs: processes at a time.
        seconds: after which all are told to save and stop (0: they are not).
    """
    waiting = [part for part in parts if not part.ended]
    running: list[_Process] = []
    end = time.monotonic() + seconds if seconds else float("inf")
    try:
        while waiting or running:
            if time.monotonic() > end:
                waiting.clear()
                yield from _stop(running)
                return
            while waiting and len(running) < jobs:
                running.append(_Process(waiting.pop(0), jobs))
            for process in [p for p in running if p.poll() is not None]:
                running.remove(process)
                yield process.told()
            time.sleep(_LOOK)
    finally:
        list(_stop(running))


def _stop(running: list[_Process]) -> Iterator[Ended]:
    """Tell all to save and stop, as Ctrl-C does, and wait; kill those that do not."""
    for process in running:
        process.interrupt()
    end = time.monotonic() + PATIENCE
    while running:
        process = running.pop()
        process.wait(max(0.0, end - time.monotonic()))
        yield process.told()


def _listening() -> None:
    """In a row's process, before it begins: it listens to interrupts, also to that of our end."""
    # what a shell starts in the background ignores the signal, and so would its children
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    die_with_parent(signal.SIGINT)


class _Process:
    """A process that plays a part."""

    def __init__(self, part: Part, jobs: int) -> None:
        self.part = part
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 closed in `told`
        self._began = time.monotonic()
        self._interrupted = False
        threads = max(1, len(os.sched_getaffinity(0)) // jobs)
        self._process = subprocess.Popen(
            command(part),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            env={"OMP_NUM_THREADS": str(threads), **os.environ},
            start_new_session=True,  # Ctrl-C comes to us alone, and we pass it on once
            preexec_fn=_listening,
        )

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        return self._process.poll()

    def interrupt(self) -> None:
        """Ask it to save and stop."""
        self._interrupted = True
        if self.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def wait(self, seconds: float) -> None:
        """Wait for it so long, then kill it."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def told(self) -> Ended:
        """What came of it."""
        seconds = time.monotonic() - self._began
        code = self._process.returncode
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").splitlines()
        self._said.close()
        if code == 0 or self._interrupted:
            return Ended(self.part, seconds, stopped=code != 0)
        last = lines[-1].removeprefix("fedshift: error: ") if lines else f"exit code {code}"
        return Ended(self.part, seconds, last)
