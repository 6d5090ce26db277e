"""What is kept of a row that was played: numbers beside the published, and scores by round."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import fedshift
from fedshift.errors import BadRun
from fedshift.papers import reproduce
from fedshift.papers.side_by_side import Part
from fedshift.report.read import RunRecord, read_run

_DIGITS = 5  # of scores, which are fractions


def result(part: Part, sizes: Mapping[str, int]) -> dict[str, Any]:
    """A row as far as it was played; `status` is "whole", "part" or "nothing"."""
    runs = {
        name: {**_run(read_run(place)), "ended": reproduce.ended(place)}
        for name, place in begun(part).items()
    }
    status = "whole" if part.ended else "part" if runs else "nothing"
    return {
        "experiment": part.plan.experiment.name,
        "setting": part.case.title,
        "method": part.entry.label,
        "seeds": len(part.plan.count),
        "status": status,
        "columns": _columns(part, sizes),
        "runs": runs,
    }


def begun(part: Part) -> dict[str, Path]:
    """The folders of a row's runs that there are."""
    found = {}
    for seed in part.plan.count:
        for left_out in reproduce.left_out_of(part.case):
            place = reproduce.folder(part.plan, part.case, part.entry, seed, left_out)
            if (place / "config.toml").is_file():
                found[f"seed{seed}" + (f" without {left_out}" if left_out else "")] = place
    return found


def _columns(part: Part, sizes: Mapping[str, int]) -> list[dict[str, Any]]:
    """The row's numbers, once each of its runs was scored."""
    try:
        return list(reproduce.rows(part.plan, part.case, part.entry, sizes))
    except (BadRun, KeyError):  # a run that has not begun, or has no score yet
        return []


def _run(run: RunRecord) -> dict[str, Any]:
    """A run's configuration and scores, short."""
    scored = run.scored("test", "global") or run.scored("test", "personal")
    curves: dict[str, list[float | None]] = {
        view: [_short(r.mean("test", view)) for r in scored] for view in ("global", "personal")
    }
    unseen = [r.scores("test", run.view, "unseen") for r in scored]
    if any(unseen):
        curves["unseen"] = [_short(next(iter(u.values()), None)) for u in unseen]
    curves["worst"] = [
        _short(min(r.scores("test", run.view).values(), default=None)) for r in scored
    ]
    last = scored[-1].scores("test", run.view) if scored else {}
    return {
        **{name: run.config.get(name) for name in ("engine", "device", "dtype", "model")},
        "rounds": run.rounds[-1].round if run.rounds else 0,
        "of": run.protocol.get("rounds"),
        "seconds": round(sum(r.seconds or 0.0 for r in run.rounds), 1),
        "round": [r.round for r in scored],
        **{name: curve for name, curve in curves.items() if any(v is not None for v in curve)},
        "clients": {name: _short(score) for name, score in last.items()},
        "warnings": list(run.warnings)[:3],
    }


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)


def machine(device: str) -> dict[str, Any]:
    """What it ran on. torch is not asked for the GPU: that would take some of its memory."""
    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(words, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        gpu = ""
    return {
        "gpu": gpu if device != "cpu" else "",
        "cores": len(os.sched_getaffinity(0)),
        "fedshift": fedshift.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
