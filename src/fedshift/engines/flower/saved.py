"""One client's samples in one file, for sites of this machine that are made from a federation."""

from __future__ import annotations

from pathlib import Path

from fedshift import files
from fedshift.data.augment import Pipeline
from fedshift.federation import Client, Federation, Samples

_SPLITS = ("train", "val", "test")


def save(path: Path, federation: Federation, name: str) -> None:
    """Write one client's samples and what they are of."""
    client = federation[name]
    parts = {split: getattr(client, split) for split in _SPLITS}
    tensors = {f"{s}.x": p.x for s, p in parts.items()} | {f"{s}.y": p.y for s, p in parts.items()}
    meta = {
        "federation": federation.name,
        "client": name,
        "classes": list(federation.classes),
        "task": federation.task,
        "metric": federation.metric,
        "pipeline": federation.pipeline.to_config(),
    }
    files.save_tensors(path, tensors, meta)


def federation(path: Path) -> Federation:
    """The federation of one client that a file holds."""
    tensors, meta = files.load_tensors(path)
    parts = [Samples(tensors[f"{s}.x"], tensors[f"{s}.y"]) for s in _SPLITS]
    return Federation(
        name=meta["federation"],
        clients=(Client(meta["client"], *parts),),
        classes=tuple(meta["classes"]),
        task=meta["task"],
        metric=meta["metric"],
        pipeline=Pipeline.from_config(meta["pipeline"]),
    )
