"""The page of one method: what its module says, and what can be seen of it."""

from __future__ import annotations

import inspect
import sys
from functools import cache
from pathlib import Path

from docs.make import curve, markdown

from fedshift import methods
from fedshift.files import read_text
from fedshift.hparam import Hyper, hypers
from fedshift.method import Method
from fedshift.wire import Wire, observe, words

HOME = Path(__file__).parent.parent / "methods"
WIRE = "What crosses the wire"
VIEWS = {"global": "the global model", "personal": "each client's own model"}
_DIFFERENCES = "Differences from"


def names() -> list[str]:
    """The methods of this package (others have their pages elsewhere)."""
    return [
        n for n in methods.names() if methods.method_class(n).__module__.startswith("fedshift.")
    ]


def path(name: str) -> Path:
    """Where a method's page is."""
    return HOME / f"{name}.md"


@cache
def seen(name: str) -> Wire:
    """What crosses when a method plays on the network and the data of the curves."""
    return observe(methods.make(name), model=curve.MODEL)


def text(name: str) -> str:
    """The whole page."""
    kind = methods.method_class(name)
    module = sys.modules[kind.__module__]
    title, parts = markdown.sections(inspect.getdoc(module) or "")
    source = f"src/{module.__name__.replace('.', '/')}.py"
    idea = parts.pop("")
    before = {h: t for h, t in parts.items() if not h.startswith((_DIFFERENCES, WIRE))}
    behind = {h: t for h, t in parts.items() if h.startswith(_DIFFERENCES)}
    lines = [
        f"<!-- Made by `make docs` from {source}: change that file, not this one. -->",
        f"# {title}",
        _facts(kind, source),
        *([idea] if idea else []),
        *(f"## {heading}\n\n{body}" for heading, body in before.items()),
        f"## {WIRE}\n\n{_wire(name, parts.get(WIRE, ''))}",
        *(f"## {heading}\n\n{body}" for heading, body in behind.items()),
        f"## Hyperparameters\n\n{_hyperparameters(kind)}",
        f"## On `{curve.DATA}`\n\n{_curve(name)}",
    ]
    return "\n\n".join(line.rstrip() for line in lines) + "\n"


def _facts(kind: type[Method], source: str) -> str:
    engines = "" if kind.stackable else " It runs in the loop engine only."
    return (
        f"`fedshift run {kind.name}`, or `fs.methods.{kind.__name__}()` in Python\n"
        f"([source](../../{source})). Scores are of {VIEWS[kind.view]}.{engines}"
    )


def _wire(name: str, said: str) -> str:
    wire = seen(name)
    columns = ["", "what", "shape", "bytes", "kind", "use", "when"]
    rows = [{**row, "": row["way"]} for row in words.rows(wire)]
    lead = markdown.wrapped(
        f"Seen on `{wire.data}` ({wire.clients} clients) with the network `{wire.model}`, for one "
        f"client; `fedshift show {name} --wire` does so for other settings and networks:"
    )
    told = "\n".join(markdown.item(sentence) for sentence in words.sentences(wire))
    return "\n\n".join(t for t in (said, lead, markdown.table(rows, columns, ["bytes"]), told) if t)


def _hyperparameters(kind: type[Method]) -> str:
    found = hypers(kind)
    if not found:
        return "None."
    columns = ["name", "default", "allowed", "meaning"]
    if any(h.has_off for h in found.values()):
        columns.append("off at")
    lead = "`off at` is where one has no effect; with all of them there, the method is FedAvg.\n\n"
    rows = [_hyperparameter(h) for h in found.values()]
    return (lead if "off at" in columns else "") + markdown.table(rows, columns)


def _hyperparameter(h: Hyper) -> dict[str, str]:
    return {
        "name": f"`{h.name}`",
        "default": _value(h.default),
        "allowed": ", ".join(map(_value, h.choices)) if h.choices else _bounds(h),
        "meaning": h.meaning,
        "off at": _value(h.off) if h.has_off else "",
    }


def _bounds(h: Hyper) -> str:
    limited = h.low is not None or h.high is not None
    return h.bounds() if limited else {bool: "true, false", str: "text"}.get(h.kind, "any")


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return f"`{value}`" if isinstance(value, str) and value else str(value) or "none"


def _curve(name: str) -> str:
    picture = curve.picture_path(name).relative_to(HOME).as_posix()
    return (
        f"![Test {curve.METRIC} over rounds]({picture})\n\n{markdown.wrapped(curve.caption(name))}"
    )


def stale(name: str) -> list[Path]:
    """The files of a method that are missing or not what would be made (of a curve: missing)."""
    wrong = [p for p in (curve.data_path(name), curve.picture_path(name)) if not p.is_file()]
    if not path(name).is_file() or (not wrong and read_text(path(name)) != text(name)):
        wrong.append(path(name))
    return wrong
