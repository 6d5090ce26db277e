"""Interrupts the toy run: `python -m tests.drivers.interrupting FOLDER ENGINE WAY…`.

A moment is counted in events: steps of training, and the primitive steps of `fedshift.files`. So
moments do not hang on the speed of the machine. Every attempt is a fork of this process, which
spares starting an interpreter each time. Prints, as JSON, for every way how many attempts were made
and what went wrong.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fedshift import files
from fedshift.models import probing
from fedshift.trip import Trip
from tests.drivers import toy_run

STEPS = ("_open", "_write", "_sync", "_replace", "_delete", "_sync_folder")
MOMENTS = 20

Act = Callable[[str, tuple[Any, ...]], None]


def watch(act: Callable[[int, str, tuple[Any, ...]], None]) -> None:
    """Call `act(number, name, arguments)` before every event of this process."""
    count = itertools.count()

    def wrap(owner: Any, name: str) -> None:
        whole = getattr(owner, name)

        def event(*args: Any, **kwargs: Any) -> Any:
            act(next(count), name, args)
            return whole(*args, **kwargs)

        setattr(owner, name, event)

    wrap(Trip, "step")
    for step in STEPS:
        wrap(files, step)


def at(moment: int, act: Act) -> Callable[[], None]:
    """Do something at one event."""
    return lambda: watch(lambda k, name, args: act(name, args) if k == moment else None)


def kill(name: str, args: tuple[Any, ...]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_half_way(name: str, args: tuple[Any, ...]) -> None:
    os.write(args[0], args[1][: len(args[1]) // 2])
    kill(name, args)


def interrupt(name: str, args: tuple[Any, ...]) -> None:
    signal.raise_signal(signal.SIGINT)


def full_from(moment: int) -> Callable[[], None]:
    """The event fails for a full disk, and so does all that is written after it."""

    def act(k: int, name: str, args: tuple[Any, ...]) -> None:
        if k == moment or (k > moment and name == "_write"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return lambda: watch(act)


def limit_to(size: int) -> Callable[[], None]:
    """No file may grow beyond a size."""

    def set_limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    return set_limit


class Laboratory:
    """Attempts of one engine, compared with the run that nobody interrupted."""

    def __init__(self, root: Path, engine: str) -> None:
        self.root, self.engine = root, engine
        self.whole = root / "whole"
        self.events = self._events(self.whole)
        self.expected = toy_run.outcome(self.whole)
        self.before_last = root / "before-last"
        start = [k for k, name in enumerate(self.events) if name == "step"]
        # the last round's first step is the first after the last but one gap between steps
        gaps = [b for a, b in itertools.pairwise(start) if b > a + 1]
        last = max(b for b in gaps if "_delete" in self.events[:b])
        assert self.attempt(self.before_last, at(last, kill)) == "killed"
        copied = shutil.copytree(self.before_last, root / "trace")
        self.last_events = self._events(copied)
        assert "step" in self.last_events and toy_run.differences(copied, self.expected) == []
        self.failures: list[str] = []
        self.attempts = 0

    def _events(self, folder: Path) -> list[str]:
        """The names of all events of playing on in a folder."""
        trace = folder.with_suffix(".trace")
        handle = os.open(trace, os.O_WRONLY | os.O_CREAT)
        note = lambda k, name, args: os.write(handle, f"{name}\n".encode())  # noqa: E731
        assert (how := self.attempt(folder, lambda: watch(note))) == "done", how
        os.close(handle)
        return trace.read_text().split()

    def attempt(self, folder: Path, prepare: Callable[[], None] = lambda: None) -> str:
        """Play on in a fork: "done", "killed", or what it ended by."""
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            how = "done"
            try:
                prepare()
                toy_run.run(folder, self.engine).play()
            except BaseException as error:
                how = f"{type(error).__name__}: {error}"
            os.write(writing, how.encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            how = pipe.read()
        _, status = os.waitpid(child, 0)
        return "killed" if os.WIFSIGNALED(status) else how

    def check(self, what: str, truth: bool, detail: object) -> None:
        """Note what should be true and is not."""
        if not truth:
            self.failures.append(f"{what}: {detail}")

    def goes_on(self, what: str, folder: Path) -> None:
        """A resumption writes what the whole run wrote, and the folder can go."""
        self.attempts += 1
        how = self.attempt(folder)
        self.check(what, how == "done", how)
        if how == "done":
            wrong = toy_run.differences(folder, self.expected)
            self.check(what, wrong == [], wrong)
        shutil.rmtree(folder)

    def copy(self) -> Path:
        """The folder as it is before the last round."""
        return Path(shutil.copytree(self.before_last, self.root / "attempt"))

    # -- the ways ------------------------------------------------------------------------------

    def moments(self) -> None:
        """SIGKILL at seeded moments of a whole run, each followed by one at a second moment."""
        draw = random.Random(f"moments {self.engine}")
        for moment in sorted(draw.sample(range(len(self.events)), MOMENTS)):
            what = f"killed at event {moment} ({self.events[moment]})"
            folder = self.root / "attempt"
            how = self.attempt(folder, at(moment, kill))
            self.check(what, how == "killed", how)
            again = draw.randrange(len(self.events))
            how = self.attempt(folder, at(again, kill))
            self.check(f"{what} and {again}", how in ("killed", "done"), how)
            self.goes_on(f"{what} and {again}", folder)

    def saving(self) -> None:
        """SIGKILL before and inside every step of what is written in and after the last round."""
        for moment, name in enumerate(self.last_events):
            if name == "step":
                continue
            for act in (kill, kill_half_way)[: 1 + (name == "_write")]:
                folder = self.copy()
                what = f"{act.__name__} at {moment} ({name})"
                how = self.attempt(folder, at(moment, act))
                self.check(what, how == "killed", how)
                self.goes_on(what, folder)

    def interrupting(self) -> None:
        """Ctrl-C in the midst of a round, and at every step of saving."""
        steps = [k for k, name in enumerate(self.last_events) if name == "step"]
        rest = [
            k
            for k, name in enumerate(self.last_events)
            if name not in ("step", "_open") and k > steps[0]
        ]
        for moment in [steps[0], steps[len(steps) // 2], steps[-1], *rest]:
            folder = self.copy()
            what = f"Ctrl-C at {moment} ({self.last_events[moment]})"
            how = self.attempt(folder, at(moment, interrupt))
            wanted = f"Interrupted: interrupted; continue with: fedshift run --resume {folder}"
            self.check(what, how == wanted, how)
            self.goes_on(what, folder)

    def full_disk(self) -> None:
        """ENOSPC at every step of saving, and a limit on the size of files."""
        ways = [
            (f"full at {moment} ({name})", full_from(moment), "disk full")
            for moment, name in enumerate(self.last_events)
            if name in ("_write", "_sync", "_replace")
        ]
        tensors = next((self.before_last / "checkpoint").glob("*/tensors.safetensors"))
        for size, part in (
            ((self.before_last / "metrics.jsonl").stat().st_size + 20, "metrics.jsonl"),
            (tensors.stat().st_size - 20, "tensors.safetensors"),
        ):
            ways.append((f"limit of {part}", limit_to(size), "file size limit reached"))
        for what, prepare, expected in ways:
            folder = self.copy()
            how = self.attempt(folder, prepare)
            good = how.startswith(f"BadRun: {expected} while ") and "\n" not in how
            good = (
                good
                and f"fedshift run --resume {folder}; " in how
                and what.split()[-1] in (how if what.startswith("limit") else what)
            )
            self.check(what, good, how)
            self.check(what, not list(folder.rglob(".tmp-*")), "half of something is left")
            self.goes_on(what, folder)


def quicken() -> None:
    """Spare what costs time and changes nothing here; all forks inherit it."""
    torch.set_num_threads(1)
    os.fsync = lambda handle: None  # kills lose nothing that the system has taken
    model = toy_run.run(Path("unused"), "stacked").plan.model  # imports what is imported late
    answer = probing.stackable(model, torch.rand(4, 1, 6, 6))
    probing.stackable = lambda *_: answer


def main(root: Path, engine: str, ways: list[str]) -> dict[str, Any]:
    """Interrupt runs of an engine in some ways."""
    quicken()
    root.mkdir(parents=True, exist_ok=True)
    laboratory = Laboratory(root, engine)
    found = {}
    for way in ways:
        laboratory.attempts, laboratory.failures = 0, []
        getattr(laboratory, way)()
        found[way] = {"attempts": laboratory.attempts, "failures": laboratory.failures}
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])))
