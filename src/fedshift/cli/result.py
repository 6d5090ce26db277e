"""What a command gives back of finished runs: objects for `--json`, tables, pages."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedshift.cli import messages
from fedshift.report import Report
from fedshift.report.read import RunRecord
from fedshift.report.select import Selection, select
from fedshift.report.summary import Value
from fedshift.run import Run

Object = dict[str, Any]


def of_run(run: Run) -> Object:
    """What is to be known of a run: scores as fractions, bytes and seconds of all its rounds."""
    chosen = selection(run)
    rounds = [line for line in run.lines if line["client"] is None]
    found = {
        "method": run.method.name,
        "data": run.whole.name,
        "model": run.spec.name,
        "engine": run.engine_name,
        "device": str(run.device),
        "dtype": run.dtype,
        "seed": run.seed,
        "rounds": min(run.progress.done, run.protocol.rounds),
        "metric": run.whole.metric,
        "select": run.protocol.select,
        "mean": chosen.mean if chosen else None,
        "worst": chosen.worst if chosen else None,
        "per_client": {
            c.name: chosen.scores.get(c.name) if chosen else None for c in run.federation.scored
        },
        "bytes_up": sum(line["bytes_up"] for line in rounds),
        "bytes_down": sum(line["bytes_down"] for line in rounds),
        "seconds": run.progress.seconds,
        "weights_sha256": run.weights_sha256,
        "view": run.method.view,
        "out": None if run.out is None else str(run.out),
    }
    if run.plan.privacy is not None:
        found["privacy"] = {**dataclasses.asdict(run.plan.privacy), **run.spent}
    if run.hold_out:
        unseen = chosen.unseen if chosen else {}
        found["unseen"] = {name: unseen.get(name) for name in run.hold_out}
    return found


def selection(run: Run) -> Selection | None:
    """The scores that the protocol's rule chooses; None where nothing was scored."""
    record = run.report().runs[0]
    if not record.scored("test", run.method.view):
        return None
    return select(record, run.protocol.select, run.method.view)


def table(objects: Sequence[Object]) -> list[Object]:
    """Runs of several seeds as a row a method: means and standard deviations, as fractions."""
    methods = list(dict.fromkeys(o["method"] for o in objects))
    return [_row([o for o in objects if o["method"] == method]) for method in methods]


def _row(objects: Sequence[Object]) -> Object:
    clients = list(dict.fromkeys(c for o in objects for c in o["per_client"]))
    unseen = list(dict.fromkeys(c for o in objects for c in o.get("unseen", {})))
    row: Object = {
        "method": objects[0]["method"],
        "view": objects[0]["view"],
        "select": objects[0]["select"],
        "seeds": [o["seed"] for o in objects],
    }
    for name in ("mean", "worst", "bytes_up", "bytes_down", "seconds"):
        row |= _mean_std(name, [o[name] for o in objects])
    for key, names in (("per_client", clients), ("unseen", unseen)):
        if names:
            row[key] = {c: spread([o.get(key, {}).get(c) for o in objects]) for c in names}
    return row


def _mean_std(name: str, values: Sequence[float | None]) -> Object:
    both = spread(values)
    std = "std" if name == "mean" else f"{name}_std"
    return {name: both["mean"], std: both["std"]}


def spread(values: Sequence[float | None]) -> Object:
    """Mean and standard deviation of what is known.

    >>> spread([0.5, None])
    {'mean': 0.5, 'std': None}
    """
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known:
        return {"mean": None, "std": None}
    value = Value.of(known)
    return {"mean": value.mean, "std": value.std}


def write(records: Sequence[RunRecord], folder: Path, rule: str) -> None:
    """Write `report.html` and `table.csv`, where there are scores to show."""
    if all(r.scored("test", str(r.config.get("view") or "global")) for r in records):
        report = Report(records)
        report.save(folder / "report.html", rule)
        report.save(folder / "table.csv", rule)
    else:
        messages.warning(
            f"no test data were scored, so {folder} gets no report: give the clients test data"
        )


def written(folder: Path | None) -> str:
    """The files in a folder that a reader looks for first."""
    names = ("report.html", "table.csv", "metrics.jsonl", "model.safetensors")
    return ", ".join(n for n in names if folder is not None and (folder / n).is_file())
