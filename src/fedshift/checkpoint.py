"""Saving a run so that it can go on to the same bits, and reading it back.

A checkpoint is a folder such as `checkpoint/round-00-000012` (stage and round) with `state.json`
and `tensors.safetensors`. It is written under a temporary name and renamed; only then is its
forerunner deleted. So a run that dies at any moment finds its last checkpoint whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedshift import files
from fedshift.aggregate import Server
from fedshift.errors import BadRun
from fedshift.kept import Kept
from fedshift.lines import Line
from fedshift.method import State
from fedshift.tree import Tree

FORMAT = 1
_PREFIX = "round-"


@dataclasses.dataclass(frozen=True)
class Best:
    """The model of the best round so far under a selection rule, and its score."""

    score: float
    round: int
    model: Tree
    kept: Kept


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a run stands after a round.

    Args:
        stage, round: the next round to play: index of the stage, rounds done in it.
        done: rounds done in all training stages.
        server: the server's state.
        kept: what each client keeps, by its name.
        best: the best model so far (None where the rule is the last round).
        metrics: bytes of `metrics.jsonl` that belong to the rounds done.
        seconds: time spent.
        pending: the lines of the last round, where its scores are still to come.
    """

    stage: int
    round: int
    done: int
    server: Server
    kept: Kept
    best: Best | None = None
    metrics: int = 0
    seconds: float = 0.0
    pending: tuple[Line, ...] = ()


def ordered(progress: Progress) -> Progress:
    """The same with names in order, as they are read back: sums over them round alike then."""
    methods = {
        m: State(_sorted(s.tensors), dict(sorted(s.numbers.items())))
        for m, s in progress.server.methods.items()
    }
    best = progress.best
    if best is not None:
        best = dataclasses.replace(best, model=_sorted(best.model))
    server = Server(_sorted(progress.server.model), methods)
    return dataclasses.replace(progress, server=server, best=best)


def save(folder: Path, progress: Progress, config: str) -> None:
    """Write a checkpoint and delete the ones before it; `config` identifies the run."""
    tensors: Tree = {f"server/{n}": t for n, t in progress.server.model.items()}
    numbers: dict[str, dict[str, Any]] = {}
    for method, own in progress.server.methods.items():
        tensors |= {f"method/{method}/{n}": t for n, t in own.tensors.items()}
        numbers[method] = {n: _written(v) for n, v in own.numbers.items()}
    _put_kept(tensors, "kept", progress.kept)
    best = progress.best
    if best is not None:
        tensors |= {f"best/server/{n}": t for n, t in best.model.items()}
        _put_kept(tensors, "best/kept", best.kept)
    state = {
        "format": FORMAT,
        "config": config,
        "stage": progress.stage,
        "round": progress.round,
        "done": progress.done,
        "metrics": progress.metrics,
        "seconds": progress.seconds,
        "numbers": numbers,
        "clients": list(progress.kept),
        "pending": list(progress.pending),
        "best": None if best is None else {"score": best.score, "round": best.round},
    }
    final = folder / f"{_PREFIX}{progress.stage:02d}-{progress.round:06d}"
    try:
        temporary = files.temporary_folder(final)
        files.save_tensors(temporary / "tensors.safetensors", tensors, {})
        files.write_json(temporary / "state.json", state)
        files.commit_folder(temporary, final)
    except BaseException:
        with contextlib.suppress(BadRun):
            files.sweep(folder)  # half a checkpoint fills the disk
        raise
    files.keep_newest(folder, _PREFIX)


def load(folder: Path, config: str) -> Progress | None:
    """The newest checkpoint of a run (None: there is none yet)."""
    files.sweep(folder)
    found = files.folders(folder, _PREFIX)
    if not found:
        return None
    newest = found[-1]
    rest = f"its forerunner {found[-2].name}" if len(found) > 1 else "its beginning"
    remedy = f"restore it, or delete the folder {newest} and resume from {rest}"
    try:
        state = files.read_json(newest / "state.json")
        tensors, _ = files.load_tensors(newest / "tensors.safetensors")
    except BadRun as error:
        what = str(error).rpartition(": ")[0]  # that remedy is for a file that stands alone
        raise BadRun(f"{what}: {remedy}") from None
    try:
        if state["format"] != FORMAT:
            raise BadRun(
                f"{newest} has format {state['format']}, this version reads {FORMAT}: "
                "continue with the version that wrote it"
            )
        if state["config"] != config:
            raise BadRun(
                f"{newest} belongs to another configuration: restore the run's config.toml, "
                "or start anew in another folder"
            )
        progress = _progress(state, tensors)
    except KeyError as error:
        raise BadRun(f"{newest / 'state.json'} lacks {error}: {remedy}") from None
    except (TypeError, ValueError, AttributeError):
        raise BadRun(f"{newest / 'state.json'} is no checkpoint's: {remedy}") from None
    files.keep_newest(folder, _PREFIX)  # the writer may have died before it came to that
    return progress


def check(folder: Path, saved: Progress, fresh: Progress) -> None:
    """Refuse a checkpoint of another run; `fresh` is this one at its beginning."""
    differing = {
        "the model": _shapes(saved.server.model) != _shapes(fresh.server.model),
        "the clients": list(saved.kept) != list(fresh.kept),
        "the methods": set(saved.server.methods) != set(fresh.server.methods),
    }
    wrong = [what for what, differs in differing.items() if differs]
    if wrong:
        raise BadRun(
            f"the checkpoint in {folder} does not fit this run ({' and '.join(wrong)} differ): "
            "continue with what the run began with, or restore the checkpoint"
        )


def _shapes(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {n: (t.dtype, t.shape) for n, t in tensors.items()}


def _sorted(tensors: Mapping[str, Any]) -> Tree:
    return dict(sorted(tensors.items()))


def _written(number: int | float) -> int | float | str:
    """A number as JSON can hold it: it has no NaN and no infinities."""
    return number if math.isfinite(number) else str(number)


def _read(number: Any) -> Any:
    return float(number) if isinstance(number, str) else number


def _progress(state: Mapping[str, Any], tensors: Tree) -> Progress:
    methods = {
        method: State(_under(f"method/{method}/", tensors), {n: _read(v) for n, v in own.items()})
        for method, own in state["numbers"].items()
    }
    best = None
    untouched = Kept(list(state["clients"]), _under("initial/", tensors))
    if state["best"] is not None:
        best = Best(
            score=state["best"]["score"],
            round=state["best"]["round"],
            model=_under("best/server/", tensors),
            kept=untouched.updated(_take_kept(_under("best/kept/", tensors))),
        )
    return Progress(
        stage=int(state["stage"]),
        round=int(state["round"]),
        done=int(state["done"]),
        server=Server(_under("server/", tensors), methods),
        kept=untouched.updated(_take_kept(_under("kept/", tensors))),
        best=best,
        metrics=int(state["metrics"]),
        seconds=float(state["seconds"]),
        pending=tuple(state.get("pending", ())),
    )


def _put_kept(into: Tree, prefix: str, kept: Kept) -> None:
    """Lay out what clients keep that took part; what the others begin with once for all."""
    if len(kept.touched) < len(kept):
        into |= {f"initial/{n}": t for n, t in kept.initial.items()}
    for client, tree in kept.touched.items():
        into |= {f"{prefix}/{client}/{n}": t for n, t in tree.items()}


def _take_kept(tensors: Tree) -> dict[str, Tree]:
    kept: dict[str, Tree] = {}
    for name, tensor in tensors.items():
        client, _, rest = name.partition("/")
        kept.setdefault(client, {})[rest] = tensor
    return kept


def _under(prefix: str, tensors: Tree) -> Tree:
    return {n[len(prefix) :]: t for n, t in tensors.items() if n.startswith(prefix)}
