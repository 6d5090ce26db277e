"""`fedshift run`: train one method, continue a run, or leave every client out in turn."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fedshift import methods
from fedshift.cli import messages, progress, result, setup
from fedshift.cli import options as reading
from fedshift.cli.options import Options
from fedshift.cli.parser import UsageError
from fedshift.run import Run


def command(args: argparse.Namespace) -> None:
    """Run what was asked for, and print what came of it."""
    if args.resume is not None:
        alone(args, "method")
        run = Run.resume(args.resume, say=messages.note, warn=messages.warning)
        show(play(run), args.json)
        return
    if args.method is None:
        raise UsageError(
            "no method given: name one, as in fedshift run fedavg (see fedshift list methods)"
        )
    options = reading.read(args)
    if "each" in options.hold_out:
        _leave_one_out(args, options)
    else:
        show(play(_make(args.method, options)), args.json)


def alone(args: argparse.Namespace, positional: str) -> None:
    """Refuse anything beside --resume and --json: a saved run has its configuration."""
    allowed = {"command", "resume", "json"}
    beside = [n for n, v in vars(args).items() if n not in allowed and v not in (None, [])]
    if beside:
        name = beside[0]
        word = "a method" if name == positional else reading.flag(name)
        raise UsageError(
            f"{word} cannot stand beside --resume, which continues with the saved configuration: "
            "leave it out, or start anew in another folder"
        )


def play(run: Run, title: str = "") -> Run:
    """Play a run to its end, with a progress bar, and write its page."""
    with progress.bar(run, title) as on_round:
        run.play(on_round)
    if run.out is not None:
        result.write(run.report().runs, run.out, run.protocol.select)
    return run


def show(run: Run, json: bool) -> None:
    """Print a finished run."""
    if json:
        messages.print_json(result.of_run(run))
        return
    if result.selection(run) is not None:
        print(run.report().table())
        print()
    print(f"run: {run.out}  (report.html, metrics.jsonl, model.safetensors)")


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


def _leave_one_out(args: argparse.Namespace, options: Options) -> None:
    """One run per client, which is unseen in it."""
    if len(options.hold_out) > 1:
        raise UsageError("--hold-out each leaves every client out in turn: name no other")
    made = methods.make(args.method, options.settings)
    data = setup.federation(options)
    protocol, model = setup.protocol(options, data), setup.model(options, data)
    seed = options.value("seed")
    out = setup.out(options, f"{made.name}-{data.name}-each-seed{seed}")
    found: list[dict[str, Any]] = []
    for name in data.names:
        run = Run(
            data,
            made,
            protocol,
            model,
            seed=seed,
            out=Path(out) / name,
            hold_out=[name],
            say=messages.note,
            warn=messages.warning,
            **setup.machine(options),
        )
        found.append(result.of_run(play(run, f"{made.name} without {name}")))
    result.write_held_out(found, out)
    if args.json:
        messages.print_json({"runs": found, "table": result.held_out_rows(found), "out": str(out)})
    else:
        print(result.held_out_table(found))
        print(f"\nruns: {out}")
