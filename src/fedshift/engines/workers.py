"""The loop engine over several processes: each plays one trip at a time on one thread.

Workers start from a clean interpreter and build the method and the model from their names and
hyperparameters; nothing is pickled. Data are laid into shared memory once (or mapped from the same
file), tensors of a round pass through shared memory, all else as lines of JSON. Which worker plays
which client does not change a bit of the result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from fedshift import errors, methods
from fedshift.engines.arena import Arena, mapped_files
from fedshift.engines.loop import Gathered
from fedshift.errors import BadRun, FedshiftError
from fedshift.federation import Federation
from fedshift.models import ModelSpec
from fedshift.plan import Plan
from fedshift.tree import Tree
from fedshift.trip import Job, Result

_PATIENCE = 1.0  # seconds that workers get to end by themselves
_AHEAD = 2  # trips that a worker knows of, so that it never waits for the next


class Workers:
    """Worker processes that share the work of a round.

    Args:
        plan: what is the same for all trips (on the CPU).
        federation: whose clients train.
        count: how many processes.
        spec, dtype, seed: what they need, beside the plan, to build the same.
    """

    name = "loop"

    def __init__(
        self,
        plan: Plan,
        federation: Federation,
        count: int,
        spec: ModelSpec,
        dtype: str,
        seed: int,
    ) -> None:
        self._down = Arena()
        self._data = Arena()
        opening = {
            "method": "+".join(methods.spec_of(p) or p.name for p in plan.method.parts),
            "settings": methods.settings_of(plan.method),
            "network": spec.to_dict(),
            "protocol": dataclasses.asdict(plan.protocol),
            "facts": {
                "task": plan.facts.task,
                "classes": plan.facts.classes,
                "shape": plan.facts.shape,
                "clients": plan.facts.clients,
            },
            "pipeline": plan.pipeline.to_config(),
            "dtype": dtype,
            "seed": seed,
            "privacy": plan.privacy and dataclasses.asdict(plan.privacy),
            "data": _lay_out(federation, self._data),
            "path": sys.path,
        }
        self._all: list[_Worker] = []
        try:
            for _ in range(count):
                self._all.append(_Worker(self._down, self._data))
            for worker in self._all:
                worker.send(opening)
            for worker in self._all:
                worker.receive()
        except BaseException:
            self.close()
            raise

    def play(self, jobs: Sequence[Job]) -> Result:
        """Give the trips to the workers, the longest first; results keep the order of the jobs."""
        messages = self._publish(jobs)
        whole = Gathered(len(jobs))
        waiting = sorted(range(len(jobs)), key=lambda k: jobs[k].steps)
        while True:
            self._hand_out(waiting, messages)
            busy = [w for w in self._all if w.trips]
            if not busy:
                return whole.result([j.client for j in jobs])
            ready, _, _ = select.select(busy, [], [])
            for worker in ready:
                worker.read()
                while worker.heard:
                    worker.answer(whole)

    def _hand_out(self, waiting: list[int], messages: Sequence[dict[str, Any]]) -> None:
        """A trip for every worker, and one more to go on with while there are enough."""
        for depth in range(_AHEAD):
            for worker in self._all:
                enough = depth == 0 or len(waiting) >= len(self._all)
                if waiting and enough and len(worker.trips) == depth:
                    k = waiting.pop()
                    worker.give(k, messages[k])

    def close(self) -> None:
        """End the processes: politely, then not."""
        for worker in self._all:
            worker.hang_up()
        last = time.monotonic() + _PATIENCE
        for worker in self._all:
            worker.end(max(0.0, last - time.monotonic()))
        self._all = []

    def _publish(self, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        """Write all tensors of a round once; each job refers to them by number."""
        tensors: list[Tensor] = []
        numbers: dict[int, int] = {}

        def refer(tree: Tree) -> dict[str, int]:
            for t in tree.values():
                if id(t) not in numbers:
                    numbers[id(t)] = len(tensors)
                    tensors.append(t)
            return {name: numbers[id(t)] for name, t in tree.items()}

        messages = []
        for job in jobs:
            plain = {f: getattr(job, f) for f in _PLAIN}
            plain["stage"] = dataclasses.asdict(job.stage)
            plain["numbers"] = dict(job.payload.numbers)
            for name, tree in (
                ("payload", dict(job.payload.tensors)),
                ("model", job.model),
                ("kept", job.kept),
            ):
                plain[name] = refer(tree)
            messages.append(plain)
        places = self._down.write(tensors)
        for message in messages:
            for name in ("payload", "model", "kept"):
                message[name] = {n: places[i] for n, i in message[name].items()}
        return messages


_NOT_STARTED = "a worker process could not start"
_PLAIN = ("client", "round", "lr", "key", "place", "samples", "steps")


class _Worker:
    """One process, a socket to talk to it, and the arenas that it answers in, one after another.

    `trips` are those that it was given and has not answered: their numbers and clients.
    """

    def __init__(self, down: Arena, data: Arena) -> None:
        self.trips: deque[tuple[int, str]] = deque()
        self._ups = deque(Arena() for _ in range(_AHEAD))
        self._heard = b""
        here, there = socket.socketpair()
        handles = (there.fileno(), down.handle, data.handle, *(up.handle for up in self._ups))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedshift.engines.worker", *map(str, handles)],
            pass_fds=handles,
            stdin=subprocess.DEVNULL,
            env=environment,
            process_group=0,  # a terminal's Ctrl-C is for the parent alone
        )
        there.close()
        self._socket = here

    def fileno(self) -> int:
        """For `select`."""
        return self._socket.fileno()

    def give(self, k: int, message: dict[str, Any]) -> None:
        """Give it trip k."""
        self.trips.append((k, message["client"]))
        self.send(message)

    def send(self, message: dict[str, Any]) -> None:
        """Send one message."""
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            raise self._gone() from None

    def read(self) -> None:
        """Take in what has come, at least something."""
        found = b""
        with contextlib.suppress(OSError):  # reset: it died before it read its message
            found = self._socket.recv(1 << 20)
        if not found:
            raise self._gone()
        self._heard += found

    @property
    def heard(self) -> bool:
        """Whether a whole answer is here."""
        return b"\n" in self._heard

    def receive(self) -> dict[str, Any]:
        """The next answer, or the error that the worker met."""
        while not self.heard:
            self.read()
        line, _, self._heard = self._heard.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            kind = getattr(errors, answer["kind"], None)
            if isinstance(kind, type) and issubclass(kind, FedshiftError):
                error = FedshiftError.__new__(kind)
                Exception.__init__(error, answer["error"])
                raise error
            client = self._training
            who = f"client '{client}' failed in a worker process" if client else _NOT_STARTED
            raise RuntimeError(f"{who}:\n{answer['error']}")
        return answer

    @property
    def _training(self) -> str:
        """Whose trip it plays ("": nobody's)."""
        return self.trips[0][1] if self.trips else ""

    def answer(self, whole: Gathered) -> None:
        """Take the result of its next trip out of the arena."""
        answer = self.receive()
        k, client = self.trips.popleft()
        up = self._ups[0]
        self._ups.rotate(-1)
        trees: dict[str, Tree] = {
            name: {n: up.read(place) for n, place in answer[name].items()}
            for name in ("model", "extras", "kept", "losses")
        }
        result = Result(
            clients=[client],
            model=trees["model"],
            extras=trees["extras"],
            kinds=answer["kinds"],
            kept=[{n: t.clone() for n, t in trees["kept"].items()}],
            losses=trees["losses"],
            seconds=answer["seconds"],
        )
        whole.put(k, result)

    def hang_up(self) -> None:
        """Tell the process that nothing more will come."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def end(self, patience: float) -> None:
        """Wait for the process, and kill it if it does not end."""
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _gone(self) -> BadRun:
        client = self._training
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)
        code = self._process.poll()
        how = f"was killed by signal {-code}" if code and code < 0 else f"ended with code {code}"
        doing = f" while training client '{client}'" if client else ""
        return BadRun(
            f"a worker process {how}{doing}: resume the run from its last checkpoint, and if "
            "memory ran out with fewer workers, fs.Run.resume(FOLDER, workers=1)"
        )


def _lay_out(federation: Federation, arena: Arena) -> list[dict[str, Any]]:
    """Where each client's training samples lie: in a file that is mapped, or in the arena."""
    parts = [t for c in federation.clients for t in (c.train.x, c.train.y)]
    files = mapped_files(parts)
    places = iter(arena.write([t for t, f in zip(parts, files) if f is None]))
    found: Iterator[dict[str, Any]] = (
        {"place": next(places)}
        if file is None
        else {"file": [*file, str(t.dtype).removeprefix("torch."), list(t.shape)]}
        for t, file in zip(parts, files)
    )
    flat = list(found)
    return [
        {"name": c.name, "x": flat[2 * k], "y": flat[2 * k + 1]}
        for k, c in enumerate(federation.clients)
    ]
