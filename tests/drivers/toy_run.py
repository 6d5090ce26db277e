"""The small run that tests interrupt: one method and protocol with every kind of state to save.

Clients take part in turns, in an order that is not the alphabet's, and one is unseen: so all of
what a checkpoint holds shows in the result.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import fedshift as fs
from fedshift.run import Run
from tests import toys

PROTOCOL = fs.Protocol(
    rounds=6,
    epochs=1,
    batch=5,
    lr=0.1,
    momentum=0.9,
    reset_optimizer=False,
    participation=2,
    select="best-val",
)


def federation() -> fs.Federation:
    """Four clients in the order d, c, b, a."""
    fed = toys.federation((17, 9, 12, 7))
    return dataclasses.replace(fed, clients=fed.clients[::-1])


def run(folder: Path, engine: str = "loop", workers: int = 1) -> Run:
    """The run, from its beginning or from where the folder has it."""
    if (folder / "config.toml").exists():
        return Run.resume(folder, federation())
    return Run(
        federation(),
        "fedbn+scaffold",
        PROTOCOL,
        "tests.toys:ToyNet",
        engine=engine,
        workers=workers,
        device="cpu",
        out=folder,
        hold_out=("c",),
    )


def outcome(folder: Path) -> dict[str, Any]:
    """What must not hang on interruptions: all bytes, and all lines but for their seconds."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        if path.name == "metrics.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
        elif path.name == "state.json":
            # the number of bytes of metrics.jsonl hangs on how the seconds are written
            found[name] = {**json.loads(path.read_text()), "seconds": 0, "metrics": 0}
        else:
            found[name] = path.read_bytes()
    assert {"model.safetensors", "metrics.jsonl", "personal/a.safetensors"} <= set(found)
    return found


def differences(folder: Path, whole: dict[str, Any]) -> list[str]:
    """Names of files in which a folder differs from what it should be."""
    found = outcome(folder)
    return sorted(n for n in {*found, *whole} if found.get(n) != whole.get(n))
