"""The runs of a comparison over the machines of a Ray cluster (extra `ray`).

A task is one run: a method and a seed. Every machine must have fedshift, the data, and the
comparison's folder, on a file system that all of them see: there each run writes its checkpoints,
and a task that dies with its machine goes on from them elsewhere. Ray passes names and numbers
alone, no data and no code.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedshift import comparison
from fedshift.comparison import Contest
from fedshift.errors import BadRun, FedshiftError

RETRIES = 3  # how often a run whose process died is begun again, from its checkpoint


def play(contest: Contest, address: str, say: Callable[[str], None]) -> None:
    """Play all runs of a comparison that are left, over a cluster.

    Args:
        contest: with a folder, and of data, network and methods that other processes can build.
        address: of the cluster ("auto", "HOST:PORT"), or "local" to start one here.
        say: takes a sentence for each run that ended.
    """
    if importlib.util.find_spec("ray") is None:
        raise BadRun("--ray needs ray, which is not installed: pip install 'fedshift[ray]'")
    if contest.out is None:
        raise BadRun("a comparison over a cluster needs a folder that all its machines see: --out")
    contest.open()
    comparison.read(contest.out)  # what other machines cannot build is said here, not there
    import ray

    with _connected(ray, address):
        wanted = {"num_cpus": 1, "max_retries": RETRIES, "num_gpus": _gpus(ray, contest)}
        task = ray.remote(**wanted)(play_one)
        folder = str(contest.out.resolve())
        waiting = {
            task.remote(folder, method.name, seed): f"{method.name} seed {seed}"
            for method in contest.methods
            for seed in contest.seeds
        }
        while waiting:
            (ended,), _ = ray.wait(list(waiting), num_returns=1)
            name = waiting.pop(ended)
            try:
                ray.get(ended)
            except ray.exceptions.RayError as error:
                raise BadRun(f"{name}: {_reason(error)}") from None
            say(f"{name} has ended; {len(waiting)} are left")


def play_one(folder: str, method: str, seed: int) -> None:
    """The task: one run of the comparison in a folder, from wherever it stands."""
    contest = _read(folder)
    for known in contest.methods:
        if known.name == method:
            contest.run(known, seed).play()


@functools.cache
def _read(folder: str) -> Contest:
    """Once for each process: it reads the data."""
    return comparison.read(Path(folder))


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        line = " ".join(str(error).split())[:200]
        raise BadRun(f"no Ray cluster answers at '{address}' ({line}): check --ray") from None
    try:
        yield
    finally:
        ray.shutdown()


def _gpus(ray: Any, contest: Contest) -> int:
    """A GPU for each run, where the cluster has some and the runs are not for CPUs."""
    device = str(contest.options.get("device") or "auto")
    return int(device != "cpu" and ray.cluster_resources().get("GPU", 0) >= 1)


def _reason(error: Exception) -> str:
    cause = getattr(error, "cause", None) or error
    text = " ".join(str(cause).split())
    if isinstance(cause, FedshiftError):
        return text
    return f"its process died {RETRIES + 1} times or raised: {text[-300:]}"
