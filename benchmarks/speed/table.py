"""The rows of the comparison, and their table in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from works import Work


def row(work: Work, floor: float, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What is known of a work: seconds (the best round), ratios (the median over turns), memory.

    A ratio is a peer's seconds over ours in the same turn, so that both met the same machine.
    """
    ours = found.get("ours", {})
    best = min(ours["seconds"]) if ours.get("seconds") else None
    programs = {}
    for name, one in found.items():
        seconds = one.get("seconds") or []
        ratios = [a / b for a, b in zip(seconds, ours.get("seconds") or [], strict=False)]
        programs[name] = {
            **one,
            "best": min(seconds, default=None),
            "ratio": median(ratios) if ratios else None,
        }
    return {
        **asdict(work),
        "floor_seconds": floor,
        "of_floor": None if best is None else floor / best,
        "programs": programs,
    }


def markdown(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> str:
    """The table: a line per work."""
    peers = [n for n in names if n != "ours"]
    head = ["work", "fedshift", *(f"{n} / fedshift" for n in peers), "of the floor", "memory"]
    lines = [_line(head), _line([":--", *["--:"] * (len(head) - 1)])]
    for one in rows:
        if "error" in one:
            lines.append(_line([one["name"], one["error"], *["-"] * (len(head) - 2)]))
            continue
        programs = one["programs"]
        cells = [_ratio(programs.get(n, {})) for n in peers]
        ours = programs["ours"]
        seconds = ours.get("error", "-") if ours["best"] is None else f"{ours['best']:.3g} s"
        share = "-" if one["of_floor"] is None else f"{100 * one['of_floor']:.0f} %"
        lines.append(_line([one["name"], seconds, *cells, share, _memory(ours)]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _ratio(program: Mapping[str, Any]) -> str:
    ratio = program.get("ratio")
    return program.get("error", "-") if ratio is None else f"{ratio:.2f}"


def _memory(program: Mapping[str, Any]) -> str:
    """On a GPU what tensors took there; else of all processes together, beyond the data."""
    if program.get("peak") is None:
        return "-"
    if program["gpu"]:
        return f"{program['gpu'] / 1e9:.2f} GB"
    return f"{max(0, program['peak'] - program['data']) / 1e9:.2f} GB"
