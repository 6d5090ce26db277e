"""`fedshift run`: train one method, or continue a run (leaving out each client is in `each`)."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedshift import methods
from fedshift.cli import each, messages, result, setup
from fedshift.cli import options as reading
from fedshift.cli.options import Options
from fedshift.cli.parser import UsageError
from fedshift.cli.playing import play
from fedshift.run import Run


def command(args: argparse.Namespace) -> None:
    """Run what was asked for, and print what came of it."""
    if args.resume is not None:
        alone(args, "method")
        _resume(Path(args.resume), args.json)
        return
    if args.method is None:
        raise UsageError(
            "no method given: name one, as in fedshift run fedavg (see fedshift list methods)"
        )
    options = reading.read(args)
    if "each" in options.hold_out:
        each.start(args, options)
    else:
        show(play(_make(args.method, options)), args.json)


def _resume(folder: Path, json: bool) -> None:
    first = each.begun(folder)
    if first is not None:
        each.resume(folder, first, json)
    else:
        show(play(Run.resume(folder, say=messages.note, warn=messages.warning)), json)


def alone(args: argparse.Namespace, positional: str) -> None:
    """Refuse anything beside --resume and --json: a saved run has its configuration."""
    allowed = {"command", "resume", "json", "ray"}
    beside = [n for n, v in vars(args).items() if n not in allowed and v not in (None, [])]
    if beside:
        name = beside[0]
        word = "a method" if name == positional else reading.flag(name)
        raise UsageError(
            f"{word} cannot stand beside --resume, which continues with the saved configuration: "
            "leave it out, or start anew in another folder"
        )


def show(run: Run, json: bool) -> None:
    """Print a finished run."""
    if json:
        messages.print_json(result.of_run(run))
        return
    if result.selection(run) is not None:
        print(run.report().table())
        print()
    print(f"run: {run.out}  ({result.written(run.out)})")


def _make(method: str, options: Options) -> Run:
    """The run that options describe."""
    made = methods.make(method, options.settings)
    data = setup.federation(options)
    seed = options.value("seed")
    return Run(
        data,
        made,
        setup.protocol(options, data),
        setup.model(options, data),
        seed=seed,
        out=setup.out(options, f"{made.name}-{data.name}-seed{seed}"),
        hold_out=options.hold_out,
        say=messages.note,
        warn=messages.warning,
        **setup.machine(options),
    )
