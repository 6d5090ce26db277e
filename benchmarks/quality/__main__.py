"""What methods reach on the embedded digits: `python benchmarks/quality [--seeds N] [--out DIR]`.

Every method under one protocol (the federation's own), with all five sites, and with each site left
out in turn. A run's scores are kept in the folder as soon as it ends, so the whole can be
interrupted and called again. Prints the table of `docs/results.md`; scores are of the last round,
nothing was chosen by test data.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from scores import DATA, ROWS, Scores, score

import fedshift as fs
from fedshift import files


def play(seeds: int, out: Path, workers: int) -> dict[tuple[str, int, str], Scores]:
    """All runs that are not in the folder yet, over processes; then all scores."""
    sites = ("", *fs.data.load(DATA).names)
    jobs = [(row, seed, site) for seed in range(seeds) for row in ROWS for site in sites]
    jobs.sort(key=lambda job: job[2] != "")  # those with all sites first
    place = {job: out / f"{job[0]}-seed{job[1]}-{job[2] or 'all'}.json" for job in jobs}
    left = [job for job in jobs if not place[job].exists()]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting = {pool.submit(score, *job): job for job in left}
        for done, future in enumerate(as_completed(waiting), 1):
            job = waiting[future]
            files.write_json(place[job], future.result())
            print(f"{done}/{len(left)} {place[job].stem}", flush=True)
    return {job: json.loads(path.read_text()) for job, path in place.items()}


def table(found: dict[tuple[str, int, str], Scores], seeds: int) -> Iterator[str]:
    """Markdown: mean over sites, then mean and deviation over seeds."""
    yield (
        "| method | global: mean | worst site | personal: mean | worst site | site left out: mean "
        "| seconds |"
    )
    yield "| :-- | --: | --: | --: | --: | --: | --: |"
    for row in ROWS:
        whole = [found[row, seed, ""] for seed in range(seeds)]
        cells = []
        for field in ("test", "personal_test"):
            each = [_scores(run, field) for run in whole]
            cells += [_cell(each, statistics.fmean), _cell(each, min)]
        unseen = [
            [
                s["test"]
                for (name, k, site), run in found.items()
                if name == row and k == seed and site
                for s in run["sites"].values()
                if s["role"] == "unseen" and s["test"] is not None
            ]
            for seed in range(seeds)
        ]
        cells.append(_cell(unseen, statistics.fmean))
        seconds = statistics.median(run["seconds"] for run in whole)
        yield f"| {row} | {' | '.join(cells)} | {seconds:.0f} |"


def _scores(run: Scores, field: str) -> list[float]:
    return [s[field] for s in run["sites"].values() if s[field] is not None]


def _cell(each: list[list[float]], over_sites: Callable[[list[float]], float]) -> str:
    """Mean and standard deviation over seeds, in %."""
    if not all(each):
        return "-"
    values = [100 * over_sites(scores) for scores in each]
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.1f} ± {spread:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="how many, counted from 0")
    parser.add_argument("--out", type=Path, default=Path("runs/quality"), help="where scores lie")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    found = play(chosen.seeds, chosen.out, chosen.workers)
    print()
    print("\n".join(table(found, chosen.seeds)))


if __name__ == "__main__":
    main()
