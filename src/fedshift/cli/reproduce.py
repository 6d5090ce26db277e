"""`fedshift reproduce`: play a table of a paper, and set ours beside the published numbers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedshift import together
from fedshift.cli import messages, progress, setup
from fedshift.cli import options as reading
from fedshift.cli.listing import table as plain
from fedshift.cli.parser import UsageError
from fedshift.errors import BadRun
from fedshift.papers import experiment, experiments, side_by_side
from fedshift.papers.experiment import Experiment
from fedshift.papers.reproduce import Plan, Row, reproduce
from fedshift.run import Interrupted, Run

HOME = Path("runs") / "reproduce"


def command(args: argparse.Namespace) -> None:
    """List experiments, or play one."""
    if args.list:
        _list(args.json)
        return
    if args.experiment is None:
        raise UsageError("no experiment given: name one, as in fedshift reproduce fedfa/table3")
    plan = _plan(args)

    def play_some(runs: Sequence[Run], title: str) -> None:
        with progress.bar(runs[0], title) as on_round:
            together.play(runs, on_round)

    try:
        jobs = reading.whole(args.jobs, "jobs")
        if jobs > 1:
            _play_beside(plan, jobs)
        rows = reproduce(plan, play_some)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the same command goes on where it stopped") from None
    if args.json:
        name = plan.experiment.name
        messages.print_json({"experiment": name, "rows": rows, "complete": plan.complete})
        return
    print(table(plan, rows))


def _play_beside(plan: Plan, jobs: int) -> None:
    """Play the rows side by side, and say of each that it has ended."""
    rows = [part for part in side_by_side.parts(plan) if not part.ended]
    failed = []
    with progress.count(len(rows), plan.experiment.name) as on_row:
        for number, ended in enumerate(side_by_side.play(rows, jobs), start=1):
            if ended.error:
                failed.append(ended)
            how = f"failed ({ended.error})" if ended.error else "played"
            row = f"{ended.part.title}, {how} in {ended.seconds:.0f} s"
            messages.note(f"row {number} of {len(rows)}: {row}")
            on_row()
    if failed:
        raise BadRun(
            f"{len(failed)} of {len(rows)} rows failed, the first was {failed[0].part.title} "
            f"({failed[0].error}): the same command goes on with them"
        )


def _plan(args: argparse.Namespace) -> Plan:
    wanted = experiment(args.experiment)
    rounds = reading.whole(args.rounds, "rounds")
    out = reading.one(args, "out")
    changed = "-quick" if args.quick else f"-{rounds}-rounds" if rounds else ""
    machine = {n: reading.one(args, n) for n in ("engine", "device", "dtype")}
    machine["workers"] = reading.one(args, "workers") or None
    if args.quick and args.engine is None:
        machine |= {"engine": "loop", "workers": 1}
    return Plan(
        wanted,
        Path(out) if out else HOME / f"{setup.file_name(wanted.name)}{changed}",
        tuple(args.methods or ()),
        tuple(args.settings or ()),
        reading.whole(args.seeds, "seeds"),
        rounds,
        args.quick,
        args.pretrained or "",
        {**machine, "say": messages.note, "warn": messages.warning},
    )


def table(plan: Plan, rows: list[Row]) -> str:
    """The rows for a terminal, with what a reader must know below."""
    shown = [
        {
            "setting": row["setting"],
            "method": row["method"],
            "column": row["client"],
            "paper": _number(row["paper"]),
            "ours": _number(row["ours"]),
            "std": _number(row["std"]),
            "difference": _difference(row),
            "within": {True: "yes", False: "no", None: ""}[row["within"]],
            "rerun": _number(row["rerun"]),
        }
        for row in rows
    ]
    columns = ("setting", "method", "column", "paper", "ours", "std", "difference", "within")
    text = [plain(shown, (*columns, "rerun")), "", *_below(plan)]
    return "\n".join(text)


def _below(plan: Plan) -> list[str]:
    rules = sorted({case.protocol.select for case in plan.cases})
    found = [
        f"{plan.experiment.name}: {plan.experiment.title}; in %, or rounds; {len(plan.count)} "
        f"seed(s); selection {', '.join(rules)}; within: 1.5 points or two deviations; rerun: the "
        "released code, run again"
    ]
    if plan.experiment.note:
        found.append(plan.experiment.note)
    if any(case.imagenet for case in plan.cases) and not plan.pretrained:
        found.append("The paper's networks begin with ImageNet's weights; these did not.")
    if plan.quick:
        found.append("Two rounds of two steps: these numbers say nothing of the methods.")
    elif not plan.complete:
        found.append("Not the whole recipe: fewer rows, seeds or rounds than it has.")
    left = [e for e in plan.experiment.entries if not e.method]
    found += [f"Not played: {e.label} ({e.why})" for e in left]
    return [*found, f"runs: {plan.out}"]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _difference(row: Row) -> str:
    if row["paper"] is None or row["ours"] is None:
        return ""
    return f"{row['ours'] - row['paper']:+.2f}"


def _list(json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "name": e.name,
            "about": e.title,
            "runs": len(e.cases) * sum(bool(entry.method) for entry in e.entries) * e.seeds,
            "data": _missing(e),
        }
        for e in experiments().values()
    ]
    if json:
        messages.print_json(rows)
    else:
        print(plain(rows, ("name", "about", "runs", "data")))


def _missing(wanted: Experiment) -> str:
    """What of an experiment's data is not here."""
    from fedshift.data.sets import there

    sets = {name: None for case in wanted.cases for name in there.missing(case.data)}
    return f"not here: {', '.join(sets)}" if sets else "here"
