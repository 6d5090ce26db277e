"""The few things of Markdown that pages are made of."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

WIDTH = 98


def table(
    rows: Sequence[Mapping[str, str]], columns: Sequence[str], right: Sequence[str] = ()
) -> str:
    """A table with the named columns; those in `right` are set to the right."""
    head = " | ".join(columns)
    rule = " | ".join("--:" if c in right else ":--" for c in columns)
    lines = [" | ".join(cell(row.get(c, "")) for c in columns) for row in rows]
    return "\n".join(f"| {line} |" for line in (head, rule, *lines))


def cell(text: str) -> str:
    """Text that may stand in a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def wrapped(text: str) -> str:
    """A paragraph in lines of the usual width."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def item(text: str) -> str:
    """An item of a list, in lines of the usual width."""
    return textwrap.indent(wrapped(text), "  ").replace("  ", "- ", 1)


def sections(text: str) -> tuple[str, dict[str, str]]:
    """A docstring as title and sections by their headings, in order; what comes first has none.

    The title is the first line, with or without the mark of a heading, and without a full stop.
    """
    title, _, rest = text.strip().partition("\n")
    found: dict[str, list[str]] = {"": []}
    heading = ""
    for line in rest.splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ").strip()
            found[heading] = []
        else:
            found[heading].append(line)
    return title.removeprefix("# ").rstrip("."), {
        h: "\n".join(lines).strip("\n") for h, lines in found.items()
    }
