"""Plays the papers' tables of `docs/results.md`: `python benchmarks/papers --budget 3600`.

As many rows at a time as `--jobs` says, the most wanted first, each by `fedshift reproduce` in a
process of its own. When the budget is spent, all save and stop; a second call with the same `--out`
goes on. After each row that ends, `results.json` there is written anew: what came of every row, its
runs' scores round by round, seconds, and the machine. A row that fails says why in it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from results import begun, machine, result
from work import WORK, parts

from fedshift import files
from fedshift.papers import side_by_side
from fedshift.papers.reproduce import federation
from fedshift.papers.side_by_side import Ended, Part


class Batch:
    """Rows to play, and what is known of them.

    Args:
        parts: the rows, the most wanted first.
        out: the folder for runs and results.
        known: results of an earlier call elsewhere, of which whole rows are not played again.
        about: what else stands in the results.
    """

    def __init__(self, parts: list[Part], out: Path, known: Path | None, about: Any) -> None:
        self.parts, self.out, self.about = parts, out, about
        self.rows = {_name(row): row for row in _rows(known)}
        self.known_sizes: dict[str, dict[str, int]] = {}
        self.walls: dict[str, list[float]] = {}

    def sizes(self, part: Part) -> dict[str, int]:
        """How many test samples each client has; data that no row has trained on are not read."""
        name = part.case.data
        if name not in self.known_sizes and begun(part):
            found = federation(part.plan, part.case)
            self.known_sizes[name] = {c.name: len(c.test) for c in found.clients}
        return self.known_sizes.get(name, {})

    @property
    def left(self) -> list[Part]:
        """The rows that are not known to be whole."""
        known = {name for name, row in self.rows.items() if row["status"] == "whole"}
        return [part for part in self.parts if part_name(part) not in known]

    def play(self, jobs: int, budget: float) -> None:
        """Play what is left, and write the results after each row; who failed gets a second try."""
        end = time.monotonic() + budget
        for part in self.left:
            self.note(part)
        self.write()
        for _ in range(2):
            left = end - time.monotonic()
            if not budget or left > 0:
                self._play(jobs, left if budget else 0.0)

    def _play(self, jobs: int, budget: float) -> None:
        for ended in side_by_side.play(self.left, jobs, budget):
            self.note(ended.part, ended)
            self.write()
            row = self.rows[part_name(ended.part)]
            print(f"{row['status']:8} {ended.seconds:5.0f} s  {part_name(ended.part)}", flush=True)
            if ended.error:
                print(f"         {ended.error}", flush=True)

    def note(self, part: Part, ended: Ended | None = None) -> None:
        """Note what has come of a row so far."""
        name = part_name(part)
        if ended is not None:
            self.walls.setdefault(name, []).append(ended.seconds)
        self.rows[name] = {
            **result(part, self.sizes(part)),
            "error": ended.error if ended else "",
            "wall": self.walls.get(name, []),
        }

    def write(self) -> None:
        """Write the results."""
        found = {**self.about, "rows": list(self.rows.values())}
        files.write_json(self.out / "results.json", found)


def part_name(part: Part) -> str:
    """A row's name."""
    return f"{part.plan.experiment.name}: {part.title} x {len(part.plan.count)}"


def _name(row: Any) -> str:
    return f"{row['experiment']}: {row['setting']}: {row['method']} x {row['seeds']}"


def _rows(known: Path | None) -> list[Any]:
    return [] if known is None else list(files.read_json(known)["rows"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/papers"), help="runs and results")
    parser.add_argument("--budget", type=float, default=0, help="seconds (0: to the end)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--only", nargs="+", metavar="TEXT", help="rows whose name has one of these"
    )
    parser.add_argument("--rounds", type=int, default=0, help="fewer rounds than the papers'")
    parser.add_argument("--quick", action="store_true", help="a few steps: whether all of it works")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--known", type=Path, help="results.json of an earlier call elsewhere")
    parser.add_argument("--list", action="store_true", help="name the rows, and play none")
    chosen = parser.parse_args()
    began = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):  # both let the rows save, also in the background
        signal.signal(number, signal.default_int_handler)
    found = [
        part
        for part in parts(WORK, chosen.out, chosen.rounds, chosen.quick, chosen.device)
        if not chosen.only or any(text in part_name(part) for text in chosen.only)
    ]
    if chosen.list:
        print("\n".join(map(part_name, found)))
        return
    chosen.out.mkdir(parents=True, exist_ok=True)
    about = {"machine": machine(chosen.device), "jobs": chosen.jobs, "budget": chosen.budget}
    batch = Batch(found, chosen.out, chosen.known, about)
    spent = time.monotonic() - began
    batch.play(chosen.jobs, chosen.budget and max(1.0, chosen.budget - spent))
    counts: dict[str, int] = {}
    for row in batch.rows.values():
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    print(json.dumps({"rows": counts, "seconds": round(time.monotonic() - began)}))


if __name__ == "__main__":
    main()
