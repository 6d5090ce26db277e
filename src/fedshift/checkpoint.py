"""Saving a run so that it can go on to the same bits, and reading it back.

A checkpoint is a folder `checkpoint/round-000012` with `state.json` and `tensors.safetensors`. It is
written under a temporary name and renamed; only then is its forerunner deleted. So a run that dies at
any moment finds its last checkpoint whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedshift import files
from fedshift.aggregate import Server
from fedshift.errors import BadRun
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
    kept: Mapping[str, Tree]


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
    """

    stage: int
    round: int
    done: int
    server: Server
    kept: Mapping[str, Tree]
    best: Best | None = None
    metrics: int = 0
    seconds: float = 0.0


def save(folder: Path, progress: Progress, config: str) -> None:
    """Write a checkpoint and delete the ones before it; `config` identifies the run."""
    tensors: Tree = {f"server/{n}": t for n, t in progress.server.model.items()}
    numbers: dict[str, dict[str, Any]] = {}
    for method, state in progress.server.methods.items():
        tensors |= {f"method/{method}/{n}": t for n, t in state.tensors.items()}
        numbers[method] = dict(state.numbers)
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
        "clients": sorted(progress.kept),
        "best": None if best is None else {"score": best.score, "round": best.round},
    }
    final = folder / f"{_PREFIX}{progress.stage:02d}-{progress.round:06d}"
    temporary = files.temporary_folder(final)
    files.save_tensors(temporary / "tensors.safetensors", tensors, {})
    files.write_json(temporary / "state.json", state)
    files.commit_folder(temporary, final)
    files.keep_newest(folder, _PREFIX)


def load(folder: Path, config: str) -> Progress | None:
    """The newest checkpoint of a run (None: there is none yet)."""
    files.sweep(folder)
    found = files.folders(folder, _PREFIX)
    if not found:
        return None
    newest = found[-1]
    state = files.read_json(newest / "state.json")
    tensors, _ = files.load_tensors(newest / "tensors.safetensors")
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
        return _progress(state, tensors)
    except (KeyError, TypeError) as error:
        raise BadRun(
            f"{newest / 'state.json'} lacks {error}: it is damaged or foreign; delete that folder "
            "to start anew"
        ) from None


def _progress(state: Mapping[str, Any], tensors: Tree) -> Progress:
    methods = {
        method: State(_under(f"method/{method}/", tensors), numbers)
        for method, numbers in state["numbers"].items()
    }
    best = None
    if state["best"] is not None:
        best = Best(
            score=state["best"]["score"],
            round=state["best"]["round"],
            model=_under("best/server/", tensors),
            kept=_take_kept(_under("best/kept/", tensors)),
        )
    kept = _take_kept(_under("kept/", tensors))
    return Progress(
        stage=state["stage"],
        round=state["round"],
        done=state["done"],
        server=Server(_under("server/", tensors), methods),
        kept={name: kept.get(name, {}) for name in state["clients"]},
        best=best,
        metrics=state["metrics"],
        seconds=state["seconds"],
    )


def _put_kept(into: Tree, prefix: str, kept: Mapping[str, Tree]) -> None:
    for client, tree in kept.items():
        into |= {f"{prefix}/{client}/{n}": t for n, t in tree.items()}


def _take_kept(tensors: Tree) -> dict[str, Tree]:
    kept: dict[str, Tree] = {}
    for name, tensor in tensors.items():
        client, _, rest = name.partition("/")
        kept.setdefault(client, {})[rest] = tensor
    return kept


def _under(prefix: str, tensors: Tree) -> Tree:
    return {n[len(prefix) :]: t for n, t in tensors.items() if n.startswith(prefix)}
