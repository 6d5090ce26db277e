"""`fedshift run --hold-out each`: leave one client out after another, a run for each.

The runs lie in folders named like the clients that did not train; each holds its own configuration,
so the whole can go on from any of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from fedshift import files, methods
from fedshift.cli import messages, result, setup
from fedshift.cli.options import Options
from fedshift.cli.parser import UsageError
from fedshift.cli.playing import play, resumable
from fedshift.federation import Federation
from fedshift.run import Run


def start(args: argparse.Namespace, options: Options) -> None:
    """Leave every client out in turn, and print the table."""
    if len(options.hold_out) > 1:
        raise UsageError("--hold-out each leaves every client out in turn: name no other")
    method = methods.make(args.method, options.settings)
    data = setup.federation(options)
    protocol, model = setup.protocol(options, data), setup.model(options, data)
    seed = options.value("seed")
    out = setup.out(options, f"{method.name}-{data.name}-each-seed{seed}")

    def make(name: str) -> Run:
        return Run(
            data,
            method,
            protocol,
            model,
            seed=seed,
            out=out / name,
            hold_out=[name],
            say=messages.note,
            warn=messages.warning,
            **setup.machine(options),
        )

    _play(data, make, out, args.json)


def begun(folder: Path) -> Path | None:
    """The first run of a leave-one-out in a folder (None: it is no such folder)."""
    if not folder.is_dir() or (folder / "config.toml").exists():
        return None
    for path in sorted(folder.glob("*/config.toml")):
        if files.read_toml(path).get("hold_out") == [path.parent.name]:
            return path.parent
    return None


def resume(folder: Path, first: Path, json: bool) -> None:
    """Go on where a leave-one-out stopped, configured as its first run."""
    like = Run.resume(first, say=messages.note, warn=messages.warning)

    def make(name: str) -> Run:
        out = folder / name
        if (out / "config.toml").exists():
            return Run.resume(out, like.whole, say=messages.note, warn=messages.warning)
        return Run(
            like.whole,
            like.method,
            like.protocol,
            like.spec,
            seed=like.seed,
            engine=like.engine_name,
            workers=like.workers,
            chunk=like.chunk,
            device=str(like.device),
            dtype=like.dtype,
            out=out,
            hold_out=[name],
            checkpoint_every=like.checkpoint_every,
            privacy=like.plan.privacy,
            secure=like.secure,
            say=messages.note,
            warn=messages.warning,
        )

    _play(like.whole, make, folder, json)


def _play(data: Federation, make: Callable[[str], Run], out: Path, json: bool) -> None:
    found = []
    with resumable("run", out, holds="*/config.toml"):
        for name in data.names:
            run = make(name)
            play(run, f"{run.method.name} without {name}")
            found.append(result.of_run(run))
        _write(found, out)
    if json:
        messages.print_json({"runs": found, "table": rows(found), "out": str(out)})
    else:
        print(table(found))
        print(f"\nruns: {out}")


def table(objects: Sequence[result.Object]) -> str:
    """Leave-one-out as text: what a client scores that did not train, and those that did."""
    lines = [("held out", "unseen", "mean of the others")]
    for o in objects:
        ((name, score),) = o["unseen"].items()
        lines.append((name, _percent(score), _percent(o["mean"])))
    whole = _means(objects)
    for name in ("mean", "std"):
        if whole["unseen"][name] is not None:
            row = (name, _percent(whole["unseen"][name]), _percent(whole["seen"][name]))
            lines.append(row)
    widths = [max(map(len, column)) for column in zip(*lines)]
    text = ["  ".join(_cells(line, widths)).rstrip() for line in lines]
    text.insert(1, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    o = objects[0]
    head = (
        f"{o['method']} on {o['data']}, {o['metric']} in %, every client left out in turn; "
        f"selection {o['select']}; seed {o['seed']}"
    )
    return "\n".join([head, "", *text])


def _cells(line: tuple[str, ...], widths: Sequence[int]) -> list[str]:
    return [c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in enumerate(zip(line, widths))]


def rows(objects: Sequence[result.Object]) -> list[result.Object]:
    """Leave-one-out as objects: a row a client, then their mean and deviation."""
    rows = []
    for o in objects:
        ((name, score),) = o["unseen"].items()
        rows.append({"held_out": name, "unseen": score, "mean": o["mean"], "worst": o["worst"]})
    return [*rows, {"held_out": None, **_means(objects)}]


def _means(objects: Sequence[result.Object]) -> result.Object:
    return {
        "unseen": result.spread([next(iter(o["unseen"].values())) for o in objects]),
        "seen": result.spread([o["mean"] for o in objects]),
    }


def _write(objects: Sequence[result.Object], folder: Path) -> None:
    """Write the leave-one-out table, as CSV in fractions."""
    lines = ["held_out,unseen,mean_of_the_others"]
    for o in objects:
        ((name, score),) = o["unseen"].items()
        lines.append(f"{_quoted(name)},{_number(score)},{_number(o['mean'])}")
    files.write_text(folder / "table.csv", "\n".join(lines) + "\n")


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\n') else text


def _number(value: float | None) -> str:
    return "" if value is None else repr(value)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"
