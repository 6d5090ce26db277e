"""`fedshift list`: the methods, federations and models that have names."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

from fedshift.cli import messages


def command(args: argparse.Namespace) -> None:
    """Print a list."""
    rows = {"methods": methods, "data": data, "models": models}[args.what]()
    if args.json:
        messages.print_json(rows)
    else:
        print(table(rows, ("name", "about", "paper")))


def methods() -> list[dict[str, Any]]:
    """Every method, with a model that shows it at its best and settings that make it quick."""
    from fedshift import methods as registry
    from fedshift.hparam import hypers

    found = []
    for name in registry.names():
        kind = registry.method_class(name)
        quick = {n: h.quick for n, h in hypers(kind).items() if h.quick is not None}
        found.append(
            {
                "name": name,
                "about": first_line(inspect.getdoc(kind)),
                "paper": kind.paper,
                "view": kind.view,
                "example_model": kind.example_model,
                "quick": quick,
            }
        )
    return found


def data() -> list[dict[str, Any]]:
    """Every federation that has a name."""
    from fedshift import data as registry

    return [{"name": n, "about": about} for n, about in registry.names().items()]


def models() -> list[dict[str, Any]]:
    """Every network of this package."""
    from fedshift.models import names

    return [{"name": n, "about": about} for n, about in names().items()]


def first_line(text: str | None) -> str:
    """The first line of a docstring.

    >>> first_line("One.\\n\\nTwo.")
    'One.'
    """
    return (text or "").strip().partition("\n")[0]


def table(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> str:
    """Aligned columns; those that no row has are left out.

    >>> print(table([{"name": "a", "about": "b"}], ("name", "about", "paper")))
    name  about
    a     b
    """
    used = [c for c in columns if any(row.get(c) not in (None, "") for row in rows)]
    lines = [used, *([str(row.get(c, "")) for c in used] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(t.ljust(w) for t, w in zip(r, widths)).rstrip() for r in lines)
