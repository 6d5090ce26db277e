"""Tables of scores as text, Markdown, CSV and LaTeX; every caption carries the selection rule."""

from __future__ import annotations

import csv
import dataclasses
import io
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedshift.errors import UnknownName
from fedshift.report.read import RunRecord
from fedshift.report.select import MEANING, select
from fedshift.report.summary import (
    Summary,
    Value,
    check_same_data,
    epsilon_in_words,
    label,
    summarise,
)

MIB = 2**20
BLANK = "-"


@dataclasses.dataclass(frozen=True)
class Column:
    """One column: its heading, the factor and digits of its numbers, and which end is best.

    Where `spread` is off, only the mean over seeds is printed (CSV has the deviation all the same).
    """

    name: str
    scale: float = 1.0
    digits: int = 2
    spread: bool = True
    best: str = ""  # "high" or "low": the best entry is marked where the style can


Cell = str | Value | None


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows under columns, with a caption; each style prints the same numbers.

    >>> table = Table("two", (Column("name"), Column("n", digits=1)), (("a", Value.of([1, 2])),))
    >>> print(table.text())
    two
    <BLANKLINE>
    name          n
    ---------------
    a     1.5 ± 0.7
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def render(self, style: str = "text") -> str:
        """The table in a style: "text", "markdown", "csv" or "latex"."""
        if style not in STYLES:
            raise UnknownName("table style", style, STYLES)
        return STYLES[style](self)

    def text(self) -> str:
        """Aligned columns for a terminal, the first to the left, numbers to the right."""
        lines = [[c.name for c in self.columns], *self.cells(" ± ")]
        widths = [max(map(_width, column)) for column in zip(*lines)]
        printed = [
            "  ".join(_pad(cell, w, k == 0) for k, (cell, w) in enumerate(zip(line, widths)))
            for line in lines
        ]
        printed.insert(1, "-" * (sum(widths) + 2 * (len(widths) - 1)))
        return "\n".join([self.caption, "", *(line.rstrip() for line in printed)])

    def markdown(self) -> str:
        """A Markdown table; the best of a column is bold."""
        best = self.best()
        lines = [
            [f"**{c}**" if (i, k) in best else _escape_markdown(c) for k, c in enumerate(row)]
            for i, row in enumerate(self.cells(" ± "))
        ]
        head = [_escape_markdown(c.name) for c in self.columns]
        rule = [":--"] + ["--:"] * (len(head) - 1)
        body = ["| " + " | ".join(line) + " |" for line in (head, rule, *lines)]
        return "\n".join([*body, "", _escape_markdown(self.caption)])

    def csv(self) -> str:
        """Every number unrounded, in its own unit, its deviation in a column of its own."""
        spread = [
            any(isinstance(cell, Value) and cell.std is not None for cell in column)
            for column in zip(*self.rows)
        ]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        head: list[str] = []
        for column, has in zip(self.columns, spread):
            head += [column.name, f"{column.name} std"] if has else [column.name]
        writer.writerow(head)
        for row in self.rows:
            line: list[Any] = []
            for cell, column, has in zip(row, self.columns, spread):
                if isinstance(cell, Value):
                    line.append(cell.mean * column.scale)
                    if has:
                        line.append("" if cell.std is None else cell.std * column.scale)
                else:
                    line += [cell or ""] + [""] * has
            writer.writerow(line)
        return out.getvalue().rstrip("\n")

    def latex(self) -> str:
        """A LaTeX table for the booktabs package; the best of a column is bold."""
        best = self.best()
        lines = [[_escape_latex(cell) for cell in row] for row in self.cells(" ± ")]
        lines = [
            [rf"\textbf{{{c}}}" if (i, k) in best else c for k, c in enumerate(row)]
            for i, row in enumerate(lines)
        ]
        head = " & ".join(_escape_latex(c.name) for c in self.columns)
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{_escape_latex(self.caption)}}}",
                rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}",
                r"\toprule",
                head + r" \\",
                r"\midrule",
                *(" & ".join(line) + r" \\" for line in lines),
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
            ]
        )

    def cells(self, between: str) -> list[list[str]]:
        """The rows as text, rounded, with a deviation where there are several seeds."""
        return [
            [_print(cell, column, between) for cell, column in zip(row, self.columns)]
            for row in self.rows
        ]

    def best(self) -> set[tuple[int, int]]:
        """The places (row, column) of the best entries, as printed; none where all are equal."""
        places: set[tuple[int, int]] = set()
        for k, column in enumerate(self.columns):
            values = {
                i: round(cell.mean * column.scale, column.digits)
                for i, row in enumerate(self.rows)
                if isinstance(cell := row[k], Value)
            }
            if column.best and len(set(values.values())) > 1:
                top = (max if column.best == "high" else min)(values.values())
                places |= {(i, k) for i, v in values.items() if v == top}
        return places


STYLES: dict[str, Callable[[Table], str]] = {
    "text": Table.text,
    "markdown": Table.markdown,
    "csv": Table.csv,
    "latex": Table.latex,
}


def comparison(runs: Sequence[RunRecord], rule: str = "last") -> Table:
    """One row a method: mean over clients, worst, each client, bytes and seconds a round.

    Scores are of the model that the method declares: the global one, or each client's own, which
    a column tells where there are such methods. "personal" is the mean of clients' own models
    where a method has them beside its global one.
    """
    summaries = summarise(runs, rule)
    personal = _personal(runs, rule)
    views = any(s.view == "personal" for s in summaries)
    clients = _union([list(s.scores) for s in summaries])
    unseen = _union([list(s.unseen) for s in summaries])
    columns = [
        Column("method"),
        *([Column("view")] if views else []),
        _score("mean"),
        _score("worst"),
    ]
    columns += [_score("personal")] if personal else []
    columns += [_score(c) for c in clients] + [_score(f"{c} (unseen)") for c in unseen]
    columns += _costs()
    rows = []
    for s in summaries:
        row: list[Cell] = [s.method, *([s.view] if views else []), s.mean, s.worst]
        row += [personal.get(s.method)] if personal else []
        row += [s.scores.get(c) for c in clients] + [s.unseen.get(c) for c in unseen]
        rows.append((*row, s.bytes_up, s.bytes_down, s.seconds))
    return _without_blank(Table(_caption(runs, summaries, rule), tuple(columns), tuple(rows)))


def clients(run: RunRecord, rule: str = "last") -> Table:
    """One row a client of one run, with the mean and the spread over clients below.

    Test and validation scores are of the model that the method declares; the last column has the
    test scores of the other kind, where there are such.
    """
    check_same_data([run])
    chosen = select(run, rule)
    picked = [r for r in run.rounds if r.round in chosen.rounds]
    beside = "personal" if chosen.view == "global" else "global"
    other = select(run, rule, beside) if run.scored("test", beside) else None
    # Clients are not competitors: no best is marked here.
    columns = [Column(c, scale=100.0) for c in ("client", "test", "validation", beside)]
    rows: list[tuple[Cell, ...]] = []
    for role, scores in (("seen", chosen.scores), ("unseen", chosen.unseen)):
        for client, score in scores.items():
            each = [r.scores("val", chosen.view, role).get(client) for r in picked]
            vals = [v for v in each if v is not None]
            row: list[Cell] = [client if role == "seen" else f"{client} (unseen)", _one(score)]
            row.append(_one(sum(vals) / len(vals)) if vals else None)
            theirs: Mapping[str, float] = {}
            if other:
                theirs = other.scores if role == "seen" else other.unseen
            row.append(_one(theirs[client]) if client in theirs else None)
            rows.append(tuple(row))
    valid = [v for r in picked if (v := r.mean("val", chosen.view)) is not None]
    rows.append(
        (
            "mean",
            _one(chosen.mean),
            _one(sum(valid) / len(valid)) if valid else None,
            _one(other.mean) if other else None,
        )
    )
    rows.append(("spread", _one(chosen.spread), None, _one(other.spread) if other else None))
    caption = (
        f"{run.method} on {run.data or 'unnamed data'}, {run.metric} in %; "
        f"{_rule_words(rule)}: {_rounds_words(chosen.rounds)}; "
        f"{'seed ' + str(run.seed) if run.seed is not None else 'one seed'}"
    )
    if chosen.view == "personal":
        caption += "; each client's own model"
    if chosen.unseen:
        caption += "; mean and spread are of the clients that trained"
    if cost := epsilon_in_words(run.privacy):
        caption += f"; {cost}"
    return _without_blank(Table(caption, tuple(columns), tuple(rows)))


def costs(runs: Sequence[RunRecord]) -> Table:
    """What a round costs: one row a run, means over its rounds."""
    rows: list[tuple[Cell, ...]] = []
    for run in runs:
        row: list[Cell] = [label(run)]
        for quantity in ("bytes_up", "bytes_down", "seconds"):
            value = run.per_round(quantity)
            row.append(None if value is None else _one(value))
        rows.append(tuple(row))
    caption = "means over the rounds, all participants together"
    return _without_blank(Table(caption, (Column("run"), *_costs()), tuple(rows)))


def _caption(runs: Sequence[RunRecord], summaries: Sequence[Summary], rule: str) -> str:
    counts = sorted({len(s.seeds) for s in summaries})
    few = "1 seed" if counts == [1] else f"{'-'.join(map(str, _ends(counts)))} seeds"
    spread = ", mean ± standard deviation over seeds" if counts[-1] > 1 else ""
    data = runs[0].data or "unnamed data"
    own = any(s.view == "personal" for s in summaries)
    view = "; view personal: each client's own model" if own else ""
    return f"{data}, {runs[0].metric} in %; {_rule_words(rule)}; {few}{spread}{view}"


def _rule_words(rule: str) -> str:
    return f"selection {rule}, {MEANING[rule]}"


def _rounds_words(rounds: Sequence[int]) -> str:
    return f"round{'s' if len(rounds) > 1 else ''} {', '.join(map(str, rounds))}"


def _ends(counts: list[int]) -> list[int]:
    return counts if len(counts) == 1 else [counts[0], counts[-1]]


def _personal(runs: Sequence[RunRecord], rule: str) -> dict[str, Value]:
    """The mean score of clients' own models, for the methods that have them beside a global one."""
    having = [run for run in runs if run.view == "global" and run.scored("test", "personal")]
    return {s.method: s.mean for s in summarise(having, rule, "personal")} if having else {}


def _score(name: str) -> Column:
    return Column(name, scale=100.0, digits=2, best="high")


def _costs() -> list[Column]:
    return [
        Column("MiB up/round", scale=1 / MIB, spread=False),
        Column("MiB down/round", scale=1 / MIB, spread=False),
        Column("s/round", spread=False),
    ]


def _one(value: float) -> Value:
    return Value.of([value])


def _union(lists: Sequence[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(name for names in lists for name in names))


def _without_blank(table: Table) -> Table:
    """The table without the columns in which nothing stands."""
    used = [k for k in range(len(table.columns)) if any(row[k] is not None for row in table.rows)]
    return dataclasses.replace(
        table,
        columns=tuple(table.columns[k] for k in used),
        rows=tuple(tuple(row[k] for k in used) for row in table.rows),
    )


def _print(cell: Cell, column: Column, between: str) -> str:
    if cell is None:
        return BLANK
    if isinstance(cell, str):
        return cell
    mean = f"{cell.mean * column.scale:.{column.digits}f}"
    if cell.std is None or not column.spread:
        return mean
    return f"{mean}{between}{cell.std * column.scale:.{column.digits}f}"


def _width(text: str) -> int:
    """Columns of a terminal that a text takes: wide characters two, combining ones none."""
    return sum(
        0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )


def _pad(text: str, width: int, left: bool) -> str:
    gap = " " * (width - _width(text))
    return text + gap if left else gap + text


def _escape_markdown(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


_LATEX = {c: "\\" + c for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
}


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text)
