"""Which engine a run gets: what was asked for, or what a measured rule says is fastest.

The rule never changes results beyond rounding, and says what it chose and why.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
from torch import nn

from fedshift import keys
from fedshift.engines import Engine
from fedshift.engines.loop import Loop, one_thread
from fedshift.engines.stacked import Stacked, fitting
from fedshift.errors import BadValue
from fedshift.federation import Federation
from fedshift.net import clone
from fedshift.plan import Plan
from fedshift.tree import nbytes

ENGINES = ("auto", "loop", "stacked", "flower")
_WORTH_WORKERS = 10.0  # seconds of training from which starting processes (about 4 s) pays
_SHARE = 0.5  # of a GPU's free memory may hold the data

Say = Callable[[str], None]


def device_of(name: str) -> torch.device:
    """The device of a name ("auto": a GPU where there is one)."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadValue(f"device '{name}' is not known: choose cpu, cuda or cuda:N") from None
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise BadValue(f"device '{name}' was asked for, but there is no GPU here: take cpu")
        if (device.index or 0) >= count:
            raise BadValue(f"device '{name}' does not exist: this machine has {count} GPU(s)")
    elif device.type != "cpu":
        raise BadValue(f"device '{name}' is not supported: choose cpu, cuda or cuda:N")
    return device


def choose(
    plan: Plan,
    federation: Federation,
    engine: str,
    workers: int | None,
    chunk: int,
    rebuildable: bool,
    say: Say,
) -> tuple[str, int]:
    """The engine's name and the number of worker processes.

    Args:
        workers: as asked for (None: the rule decides).
        rebuildable: whether other processes can build the method and the model.
        say: takes sentences about what was chosen.
    """
    if engine not in ENGINES:
        raise BadValue(f"engine '{engine}' is not known: choose {', '.join(ENGINES)}")
    if workers is not None and workers < 1:
        raise BadValue(f"workers is {workers}: give 1 or more")
    if engine == "flower":
        _check_flower(plan, federation, rebuildable)
        return "flower", 1
    # Trying costs several passes of the model, so it is done where the answer matters.
    matters = engine == "stacked" or (engine == "auto" and plan.device.type == "cuda")
    reason = _unstackable(plan) if matters else ""
    if engine == "stacked" and not reason:
        return "stacked", 1
    if reason and (engine == "stacked" or plan.device.type == "cuda"):
        say(f"{reason}: the loop engine runs it")
    elif engine == "auto" and plan.device.type == "cuda" and _gains(plan, federation, chunk):
        return "stacked", 1
    if plan.device.type != "cpu":
        return "loop", 1
    return "loop", _workers(plan, federation, workers, rebuildable, say)


def resident(plan: Plan, federation: Federation) -> bool:
    """Whether the training data fit on the device (on a CPU they are where they are)."""
    if plan.device.type == "cpu":
        return True
    free, _ = torch.cuda.mem_get_info(plan.device)
    return sum(nbytes({"x": c.train.x, "y": c.train.y}) for c in federation.clients) < _SHARE * free


def start(plan: Plan, federation: Federation, name: str, chunk: int) -> Engine:
    """The engine of a name, in this process."""
    if name == "stacked":
        return Stacked(plan, federation, chunk)
    return Loop(plan, [c.train for c in federation.clients], resident(plan, federation))


def _check_flower(plan: Plan, federation: Federation, rebuildable: bool) -> None:
    """Refuse what cannot run on other machines."""
    if plan.method.pooled:
        name = next(p.name for p in plan.method.parts if p.pooled)
        raise BadValue(
            f"'{name}' trains on everybody's data at one place, and with the flower engine data "
            "never leave a site: take another method or another engine"
        )
    if not rebuildable:
        raise BadValue(
            "the method or the model lives in this process alone, and sites must build them too: "
            "put it in a module that every site has, and give it as package.module:Name"
        )


def _unstackable(plan: Plan) -> str:
    """Why the clients cannot be stacked, or ""."""
    from fedshift.models.probing import stackable

    if plan.unkeyed:
        return f"the model cannot be stacked: {plan.unkeyed[0]}"
    if not plan.method.stackable:
        name = next(p.name for p in plan.method.parts if not p.stackable)
        return f"method '{name}' cannot be stacked"
    # random: among equal samples a batch norm would blow rounding up to a difference
    key = keys.as_tensor(keys.fold(0, "probe"), plan.device)
    x = keys.uniform(key, (4, *plan.facts.shape), torch.float64)
    reason = stackable(plan.model, x.to(plan.dtype))
    # so do many batch norms over few positions: what float64 does not show is rounding
    if reason and stackable(clone(plan.model).double(), x) is not None:
        return reason
    return ""


def _gains(plan: Plan, federation: Federation, chunk: int) -> bool:
    """On a GPU stacking pays even for one client at a time, since its steps are replayed."""
    return resident(plan, federation) and (chunk or fitting(plan)) >= 1


def _workers(
    plan: Plan, federation: Federation, wanted: int | None, rebuildable: bool, say: Say
) -> int:
    clients = plan.protocol.participants(len(federation.clients))
    most = min(wanted or len(os.sched_getaffinity(0)), clients)
    if most > 1 and not rebuildable:
        if wanted:
            say("the method or the model lives in this process alone: no worker processes")
        return 1
    if wanted is not None or most == 1:
        return most
    steps = sum(plan.protocol.local_work(len(c.train)) for c in federation.clients)
    share = clients / len(federation.clients)
    total = plan.protocol.rounds * steps * share * _seconds_per_step(plan)
    return most if total > _WORTH_WORKERS else 1


def _seconds_per_step(plan: Plan) -> float:
    """The time of one forward and backward pass on one thread; the model is left as it was."""
    model: nn.Module = clone(plan.model).train()
    x = torch.zeros((plan.protocol.batch, *plan.facts.shape), dtype=plan.dtype)
    best = float("inf")
    with one_thread(plan.device), torch.random.fork_rng(devices=[]):
        for _ in range(2):
            began = time.perf_counter()
            model.head(model.features(x)).square().mean().backward()  # type: ignore[operator]
            best = min(best, time.perf_counter() - began)
    return best
