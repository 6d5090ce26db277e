"""`fedshift show`: what a method takes, what it does in a round, what it sends and keeps."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedshift import methods
from fedshift.cli import messages
from fedshift.cli.listing import table
from fedshift.compose import Composed
from fedshift.errors import BadValue, FedshiftError
from fedshift.hparam import hypers
from fedshift.method import Method
from fedshift.protocol import Protocol
from fedshift.wire import Wire, observe, words


def command(args: argparse.Namespace) -> None:
    """Print the description, or what crosses alone."""
    settings = _settings(args.set or [])
    method = methods.make(args.method, settings)
    keep = {".".join(methods.owner_of(k, [type(p) for p in method.parts])) for k in settings}
    if args.wire:
        seen = observe(method, model=args.model, keep=keep)
        found, text = seen.to_dict(), _wire_text(seen)
    else:
        tried = _tried(method, args.model, keep)
        found = {**describe(method), "wire": tried and tried.to_dict()}
        text = _text(found, tried)
    if args.json:
        messages.print_json(found)
    else:
        print(text)


def _settings(texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise BadValue(f"--set {text} is incomplete: write --set NAME=VALUE, as in mu=0.1")
        found[name] = value
    return found


def _tried(method: Composed, model: str | None, keep: Collection[str]) -> Wire | None:
    """What crosses, unless the method cannot be played here; the rest is worth reading anyway."""
    try:
        return observe(method, model=model, keep=keep)
    except FedshiftError as error:
        messages.warning(f"what '{method.name}' sends cannot be shown: {error}")
        return None


def describe(method: Composed) -> dict[str, Any]:
    """Everything that a method declares, as plain values."""
    return {
        "name": method.name,
        "view": method.view,
        "stackable": method.stackable,
        "example_model": method.parts[0].example_model,
        "parts": [_part(part) for part in method.parts],
        "phases": [dataclasses.asdict(p) for p in method.phases()],
        "stages": [dataclasses.asdict(s) for s in method.stages(Protocol())],
    }


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


# ---------------------------------------------------------------------------- in words


def _text(found: Mapping[str, Any], seen: Wire | None) -> str:
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
    lines += ["", "a local step:", *(f"  {_phase(p, found['phases'])}" for p in found["phases"])]
    if len(found["stages"]) > 1:
        lines += ["", "rounds of several kinds:"]
        lines += [f"  {_stage(s)}" for s in found["stages"]]
    return "\n".join(lines) + ("" if seen is None else f"\n\n{_wire_text(seen)}")


def _phase(phase: Mapping[str, Any], phases: Sequence[Mapping[str, Any]]) -> str:
    deed = "lowers" if phase["sign"] > 0 else "raises"
    others = any(t != "*" for p in phases for t in p["terms"])
    rest = "all other terms of the loss" if others else "the loss"
    terms = ", ".join(rest if t == "*" else t for t in phase["terms"])
    every = "" if phase["every"] == 1 else f", every {phase['every']} steps"
    return f"{phase['name']}: trains {', '.join(phase['groups'])}, {deed} {terms}{every}"


def _stage(stage: Mapping[str, Any]) -> str:
    rounds = (
        "as many rounds as the protocol says"
        if stage["name"] == "train"
        else (f"{stage['rounds']} round{'' if stage['rounds'] == 1 else 's'}")
    )
    return f"{stage['name']} ({stage['program']}, {rounds})"


def _wire_text(seen: Wire) -> str:
    """The section that `--wire` prints alone."""
    head = f"what crosses, and what a client keeps (seen on {seen.model}, {seen.data}):"
    said = [line for text in words.sentences(seen) for line in textwrap.wrap(text, 96)]
    lines = [head, *_indented(table(words.rows(seen), words.COLUMNS)), "", *said]
    return "\n".join(lines)


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]
