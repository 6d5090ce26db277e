"""One self-contained HTML page for a run or a comparison: no scripts, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any

from fedshift.report import plots, tables
from fedshift.report.read import RunRecord
from fedshift.report.select import MEANING
from fedshift.report.summary import by_method, check_same_data, label, notes


def page(runs: Sequence[RunRecord], rule: str = "last", title: str | None = None) -> str:
    """The page of one run or of many: tables, curves, protocol, warnings and versions."""
    from jinja2 import Environment, StrictUndefined

    check_same_data(runs)
    text = resources.files("fedshift.report").joinpath("page.html").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(text).render(_content(runs, rule, title)) + "\n"


def _content(runs: Sequence[RunRecord], rule: str, title: str | None) -> dict[str, Any]:
    first, methods = runs[0], by_method(runs)
    data = first.data or "unnamed data"
    if title is None:
        title = f"{first.method if len(methods) == 1 else f'{len(methods)} methods'} on {data}"
    shown: list[tuple[str, tables.Table]] = []
    if len(runs) > 1:
        name = "Comparison" if len(methods) > 1 else "Mean over seeds"
        shown.append((name, tables.comparison(runs, rule)))
    for run in runs:
        name = "Clients" if len(runs) == 1 else label(run)
        shown.append((name, tables.clients(run, rule)))
    return {
        "title": title,
        "rule": rule,
        "meaning": MEANING[rule],
        "optimistic": rule in ("best-test", "top5-test"),
        "metric": first.metric,
        "facts": _facts(runs),
        "tables": [_table(name, table) for name, table in shown],
        "charts": _charts(runs, rule),
        "costs": _table("Costs", tables.costs(runs)) if len(runs) == 1 else None,
        "notes": notes(runs),
        "protocol": _shared(runs, "protocol"),
        "privacy": _shared(runs, "privacy"),
        "versions": _shared(runs, "versions"),
    }


def _table(name: str, table: tables.Table) -> dict[str, Any]:
    return {
        "name": name,
        "caption": table.caption,
        "head": [c.name for c in table.columns],
        "rows": table.cells(" ± "),
        "best": table.best(),
    }


def _charts(runs: Sequence[RunRecord], rule: str) -> list[tuple[str, Any]]:
    """The charts that have something to show, each with what a screen reader says of it."""
    from markupsafe import Markup

    found = [("Mean test score over rounds", plots.curves(runs, "test"))]
    if any(run.scored("val", run.view) for run in runs):
        found.append(("Mean validation score over rounds", plots.curves(runs, "val")))
    if any(run.view == "global" and run.scored("test", "personal") for run in runs):
        chart = plots.curves(runs, "test", "personal")
        found.append(("Mean test score of personal models over rounds", chart))
    found.append(("Test score of each client", plots.client_dots(runs, rule)))
    if len(by_method(runs)) > 1 and any(run.per_round("bytes_up") for run in runs):
        found.append(("Score against traffic", plots.traffic(runs, rule)))
    if len(runs) == 1 and any(r.loss for r in runs[0].rounds):
        found.append(("Training loss over rounds", plots.losses(runs[0])))
    # The charts are ours and matplotlib escapes the names in them.
    return [(name, Markup(svg)) for name, svg in found]


def _facts(runs: Sequence[RunRecord]) -> list[tuple[str, str]]:
    seeds = list(dict.fromkeys(str(run.seed) for run in runs if run.seed is not None))
    facts = [
        ("data", runs[0].data),
        ("model", _either(run.model for run in runs)),
        ("engine", _either(run.engine for run in runs)),
        ("numbers", _either(str(run.config.get("dtype") or "") for run in runs)),
        ("seeds", ", ".join(seeds)),
        ("clients", ", ".join(runs[0].clients())),
        ("unseen clients", ", ".join(runs[0].clients("unseen"))),
    ]
    return [(name, value) for name, value in facts if value]


def _either(values: Any) -> str:
    return ", ".join(dict.fromkeys(v for v in values if v))


def _shared(runs: Sequence[RunRecord], what: str) -> list[tuple[str, str]]:
    """A table of settings; where runs differ, every value."""
    names = dict.fromkeys(name for run in runs for name in getattr(run, what))
    return [
        (name, " | ".join(dict.fromkeys(_word(getattr(run, what).get(name)) for run in runs)))
        for name in names
    ]


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return "-" if value is None else str(value)
