"""Seconds per round beside other simulators, on the same work: `python benchmarks/speed`.

Every program is a process of its own; they take turns of a round (short ones: of half a second), so
that they meet the same machine. Peers (pfl-research, Flower's simulation, the usual loop in plain
PyTorch) run where they can be imported. Training only, no evaluation. The floor is what the
machine's bandwidth and arithmetic, measured at the start, would allow. Prints a table, and a JSON
object on the last line.

`--parts engines` compares fedshift's engines with each other, `--parts methods` (on a GPU) the
methods with FedAvg.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from beside import beside
from costs import costs
from floor import floor, measured
from table import markdown, row
from works import GPU_ONLY, QUICK, WORKS, Work, network

from engines import engines
from fedshift.errors import FedshiftError

PROGRAMS = ("ours", "ours-one", "ours-tf32", "pfl", "flower", "plain")
_ELSEWHERE = {"cuda": "ours-one", "cpu": "ours-tf32"}  # what says nothing on a device
_LEAST = 20.0  # seconds left that make it worth to begin a work


def peers(chosen: argparse.Namespace, gpu: bool, until: float) -> Iterator[dict[str, Any]]:
    """A row per work."""
    device = "cuda" if gpu else "cpu"
    machine = measured(device)
    yield {"machine": asdict(machine)}
    names = [n for n in chosen.programs if n != _ELSEWHERE[device]]
    for work in WORKS:
        if chosen.only and work.name not in chosen.only:
            continue
        if not chosen.only and (chosen.quick and work.name not in QUICK):
            continue
        if not chosen.only and not gpu and work.name in GPU_ONLY:
            continue
        error = _cannot(work, until)
        if error:
            yield {"name": work.name, "error": error}
            continue
        rounds = chosen.rounds or (2 if chosen.quick else 5)
        yield row(work, floor(work, machine), beside(work, names, device, rounds, until))


def _cannot(work: Work, until: float) -> str:
    """Why a work is left out, or ""."""
    if until - time.monotonic() < _LEAST:
        return "out of time"
    try:
        network(work)
    except FedshiftError as error:
        return f"left out: {error}"
    return ""


def rows(chosen: argparse.Namespace, gpu: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Table and row, one after another."""
    until = time.monotonic() + chosen.budget
    if "peers" in chosen.parts:
        for one in peers(chosen, gpu, until):
            yield "machine" if "machine" in one else "peers", one
    if "engines" in chosen.parts:
        for one in engines(gpu):
            yield "engines", one
    if gpu and "methods" in chosen.parts:
        for one in costs(until):
            yield "methods", one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--parts", nargs="+", choices=("peers", "engines", "methods"), default=["peers"]
    )
    parser.add_argument("--quick", action="store_true", help="two works, two rounds")
    parser.add_argument("--only", nargs="+", metavar="WORK", help="these works", default=[])
    parser.add_argument(
        "--programs", nargs="+", choices=PROGRAMS, default=PROGRAMS, help="who runs"
    )
    parser.add_argument("--rounds", type=int, default=0, help="timed rounds (after a first)")
    parser.add_argument(
        "--budget", type=float, default=86400.0, metavar="SECONDS", help="end in time"
    )
    chosen = parser.parse_args()
    unknown = set(chosen.only) - {w.name for w in WORKS}
    if unknown:
        parser.error(f"no work {', '.join(unknown)}: choose {', '.join(w.name for w in WORKS)}")
    gpu = torch.cuda.is_available() if chosen.device == "auto" else chosen.device == "cuda"
    whole: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if gpu else platform.processor() or "cpu",
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "peers": [],
        "engines": [],
        "methods": [],
    }
    for table, one in rows(chosen, gpu):
        if table == "machine":
            whole |= one
        else:
            whole[table].append(one)
        print(f"{table}: {_brief(one)}", file=sys.stderr, flush=True)
        if chosen.out:  # after each row, so that a run cut short leaves what it found
            chosen.out.write_text(json.dumps(whole) + "\n")
    if whole["peers"]:
        print(markdown(whole["peers"], chosen.programs))
    print(json.dumps(whole))


def _brief(one: dict[str, Any]) -> str:
    if "error" in one:
        return f"{one.get('name') or one['method']}: {one['error']}"
    if "programs" in one:
        each = (f"{n} {p['best'] or p.get('error')}" for n, p in one["programs"].items())
        return f"{one['name']}: {', '.join(each)}"
    named = (f"{k} {v:.4g}" for k, v in one.items() if isinstance(v, float) and k != "lr")
    return f"{one.get('name') or one.get('method') or ''} {', '.join(named)}"


if __name__ == "__main__":
    main()
