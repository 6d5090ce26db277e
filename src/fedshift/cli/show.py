"""`fedshift show`: what a method takes, what it sends and keeps, and where it is from.

What travels is not declared but observed: the method plays a few local steps of two small clients
in this process, and what crosses is written down.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fedshift import data, methods
from fedshift.cli import messages
from fedshift.cli.listing import table
from fedshift.compose import Composed
from fedshift.engines import Engine
from fedshift.errors import BadValue, FedshiftError
from fedshift.federation import Client, Federation, Samples
from fedshift.hparam import hypers
from fedshift.method import Method
from fedshift.protocol import Protocol
from fedshift.run import Run
from fedshift.trip import Job, Result

_PROTOCOL = Protocol(rounds=2, steps=1, batch=8, eval_every=1000)
_SAMPLES = 16


def command(args: argparse.Namespace) -> None:
    """Print the description."""
    settings = _settings(args.set or [])
    found = describe(methods.make(args.method, settings), args.method, settings)
    if args.json:
        messages.print_json(found)
    else:
        print(_text(found))


def _settings(texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise BadValue(f"--set {text} is incomplete: write --set NAME=VALUE, as in mu=0.1")
        found[name] = value
    return found


def describe(method: Composed, text: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that is known of a method, as plain values."""
    chosen = {".".join(methods.owner_of(k, [type(p) for p in method.parts])) for k in settings}
    found = {
        "name": method.name,
        "view": method.view,
        "stackable": method.stackable,
        "example_model": method.parts[0].example_model,
        "parts": [_part(part) for part in method.parts],
        "phases": [dataclasses.asdict(p) for p in method.phases()],
        "stages": [dataclasses.asdict(s) for s in method.stages(Protocol())],
    }
    try:
        found["exchange"] = exchange(_quick(text, settings, chosen, method))
    except FedshiftError as error:
        messages.warning(f"what '{method.name}' sends cannot be shown: {error}")
        found["exchange"] = None
    return found


def _quick(text: str, settings: Mapping[str, Any], chosen: set[str], method: Composed) -> Composed:
    """The method with the values that make it quick, where the user gave none."""
    quick = {
        f"{p.name}.{n}": h.quick
        for p in method.parts
        for n, h in hypers(p).items()
        if h.quick is not None and f"{p.name}.{n}" not in chosen
    }
    return methods.make(text, {**settings, **quick})


def _part(part: Method) -> dict[str, Any]:
    module = sys.modules[type(part).__module__]
    return {
        "name": part.name,
        "paper": part.paper,
        "about": inspect.getdoc(module) or inspect.getdoc(type(part)) or "",
        "hyperparameters": [
            {
                "name": h.name,
                "value": getattr(part, h.name),
                "default": h.default,
                "bounds": h.bounds(),
                "meaning": h.meaning,
                "off": h.off if h.has_off else None,
                "quick": h.quick,
            }
            for h in hypers(part).values()
        ],
    }


# ---------------------------------------------------------------------------- what crosses


class _Watched:
    """An engine that writes down what goes through it."""

    name = "watched"

    def __init__(self, engine: Engine, seen: dict[str, tuple[Job, Result]]) -> None:
        self._engine, self._seen = engine, seen

    def play(self, jobs: Sequence[Job]) -> Result:
        """Play the trips; the last round of each stage stays."""
        result = self._engine.play(jobs)
        self._seen[jobs[0].stage.name] = (jobs[0], result)
        return result

    def close(self) -> None:
        """End the engine."""
        self._engine.close()


class _WatchedRun(Run):
    """A run that shows what crossed between server and clients."""

    def _start_engine(self) -> Engine:
        self.seen: dict[str, tuple[Job, Result]] = {}
        return _Watched(super()._start_engine(), self.seen)


def exchange(method: Composed) -> dict[str, Any]:
    """What the method sends and keeps, on its example model, seen by playing it."""
    run = _WatchedRun(
        _small(data.load("shifted-digits")),
        method,
        _PROTOCOL,
        method.parts[0].example_model,
        engine="loop",
        workers=1,
        device="cpu",
        warn=lambda text: None,
    )
    run.play()
    shares = {share: list(run.plan.names(share)) for share in ("both", "down", "up", "kept")}
    stages = [
        {
            "stage": name,
            "down": _entries(job.payload.tensors)
            + [{"name": n, "shape": [], "bytes": 8} for n in job.payload.numbers],
            "up": [
                {**entry, "kind": result.kinds[entry["name"]]}
                for entry in _entries({n: t[0] for n, t in result.extras.items()})
            ],
            "kept": _entries({n: t for n, t in result.kept[0].items() if not _of_model(n)}),
        }
        for name, (job, result) in run.seen.items()
    ]
    return {"model": run.spec.name, "tensors": shares, "stages": stages}


def _of_model(name: str) -> bool:
    return name.partition("/")[0] in ("model", "tuned")


def _entries(tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    return [
        {"name": n, "shape": list(t.shape), "bytes": t.numel() * t.element_size()}
        for n, t in tensors.items()
    ]


def _small(federation: Federation) -> Federation:
    """Two clients with few samples: enough to see what crosses."""

    def few(samples: Samples) -> Samples:
        return Samples(samples.x[:_SAMPLES], samples.y[:_SAMPLES])

    clients = [
        Client(c.name, few(c.train), few(c.val), few(c.test)) for c in federation.clients[:2]
    ]
    return dataclasses.replace(federation, clients=tuple(clients), scored=())


# ---------------------------------------------------------------------------- in words


def _text(found: Mapping[str, Any]) -> str:
    lines = [found["name"]]
    for part in found["parts"]:
        lines += ["", part["about"]]
        if part["paper"]:
            lines += ["", f"paper: {part['paper']}"]
        lines += ["", f"hyperparameters of {part['name']} (--set NAME=VALUE):"]
        rows = [{**h, "default": str(h["default"])} for h in part["hyperparameters"]]
        own = table(rows, ("name", "default", "bounds", "meaning")) if rows else "none"
        lines += _indented(own)
    view = {"global": "the global model", "personal": "each client's own model"}[found["view"]]
    lines += ["", f"scores are of: {view}"]
    if not found["stackable"]:
        lines.append("engine: loop only")
    lines += ["", "a local step:", *(f"  {_phase(p)}" for p in found["phases"])]
    if len(found["stages"]) > 1:
        lines += ["", "rounds of several kinds:"]
        lines += [f"  {s['name']} ({s['program']}, {s['rounds']} rounds)" for s in found["stages"]]
    return "\n".join(lines + _exchange_text(found["exchange"]))


def _phase(phase: Mapping[str, Any]) -> str:
    deed = "lowers" if phase["sign"] > 0 else "raises"
    terms = ", ".join("all other terms" if t == "*" else t for t in phase["terms"])
    every = "" if phase["every"] == 1 else f", every {phase['every']} steps"
    return f"{phase['name']}: trains {', '.join(phase['groups'])}, {deed} {terms}{every}"


def _exchange_text(seen: Mapping[str, Any] | None) -> list[str]:
    if seen is None:
        return []
    shares = seen["tensors"]
    words = {
        "both": "sent both ways, combined at the server",
        "down": "sent to clients only",
        "up": "sent to the server only, each client keeps its own",
        "kept": "kept by each client, never sent",
    }
    lines = ["", f"tensors of the model (seen on {seen['model']}):"]
    lines += [f"  {words[s]}: {_names(shares[s])}" for s in words if shares[s]]
    for stage in seen["stages"]:
        where = "" if len(seen["stages"]) == 1 else f" ({stage['stage']})"
        lines += ["", f"beyond the model{where}:"]
        for key, head in (("down", "goes down"), ("up", "goes up"), ("kept", "is kept")):
            lines.append(f"  {head}: {_summary(stage[key])}")
    return lines


def _names(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, … ({len(names)} in all)"


def _summary(entries: Sequence[Mapping[str, Any]], most: int = 6) -> str:
    if not entries:
        return "nothing"
    shown = [
        f"{e['name']} {e['shape']}" + (f" ({e['kind']})" if "kind" in e else "")
        for e in entries[:most]
    ]
    more = f", … ({len(entries)} in all)" if len(entries) > most else ""
    return f"{', '.join(shown)}{more}; {sum(e['bytes'] for e in entries)} bytes"


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]
