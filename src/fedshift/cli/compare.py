"""`fedshift compare`: several methods over several seeds, one table, one page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from fedshift import methods
from fedshift.cli import messages, result, setup, train
from fedshift.cli import options as reading
from fedshift.cli.options import SEEDS, Options
from fedshift.cli.parser import UsageError
from fedshift.cli.playing import play_all, resumable
from fedshift.comparison import Comparison, Contest, read
from fedshift.compose import Composed
from fedshift.run import Run


def command(args: argparse.Namespace) -> None:
    """Play the comparison, or the rest of it, and print the table."""
    if args.resume is not None:
        train.alone(args, "methods")
        contest = read(args.resume)
    else:
        if not args.methods:
            raise UsageError("no methods given: name some, as in fedshift compare fedavg fedbn")
        contest = _contest(args.methods, reading.read(args))
    found: list[dict[str, Any]] = []

    def play_some(runs: Sequence[Run]) -> None:
        seeds = ", ".join(str(run.seed) for run in runs)
        play_all(runs, f"{runs[0].method.name} seed {seeds}")
        found.extend(map(result.of_run, runs))

    with resumable("compare", contest.out):
        if args.ray is not None:
            from fedshift import cluster

            cluster.play(contest, args.ray, messages.note)
        whole = contest.play(play_some, messages.note, messages.warning)
        assert contest.out is not None
        result.write(whole.records, contest.out, whole.select)
    _show(contest, whole, found, args.json)


def _show(contest: Contest, whole: Comparison, found: list[dict[str, Any]], json: bool) -> None:
    if json:
        table = result.table(found)
        messages.print_json({"runs": found, "table": table, "out": str(contest.out)})
        return
    if all(o["mean"] is not None for o in found):
        print(whole.table())
        print()
    print(f"comparison: {contest.out}  ({result.written(contest.out)})")


def _contest(names: list[str], options: Options) -> Contest:
    """What the options ask to compare."""
    if "each" in options.hold_out:
        raise UsageError("--hold-out each works with fedshift run: name clients here")
    made = _methods(names, options.settings)
    data = setup.federation(options)
    first = options.value("seed")
    many = SEEDS.default if options.seeds is None else options.seeds
    return Contest(
        data,
        made,
        setup.protocol(options, data),
        setup.model(options, data),
        tuple(range(first, first + many)),
        setup.out(options, f"compare-{data.name}"),
        {"hold_out": list(options.hold_out), **setup.machine(options)},
    )


def _methods(names: list[str], settings: dict[str, Any]) -> tuple[Composed, ...]:
    """The methods, each with those settings that are about it."""
    classes = {c.name: c for text in names for c in map(methods.method_class, methods.split(text))}
    own = {methods.owner_of(key, list(classes.values())): v for key, v in settings.items()}
    made = []
    for text in names:
        parts = {methods.method_class(part).name for part in methods.split(text)}
        mine = {f"{owner}.{name}": v for (owner, name), v in own.items() if owner in parts}
        made.append(methods.make(text, mine))
    return tuple(made)
