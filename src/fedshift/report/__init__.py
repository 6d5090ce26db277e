"""What runs showed: tables, charts and pages, each number with its selection rule and seeds."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from fedshift.errors import BadValue
from fedshift.files import write_text
from fedshift.report import tables
from fedshift.report.read import RunRecord, find_runs, read_run
from fedshift.report.select import RULES, Selection
from fedshift.report.summary import check_same_data

__all__ = ["RULES", "Report", "RunRecord", "Selection", "find_runs", "read_run"]

_STYLES = {".txt": "text", ".md": "markdown", ".csv": "csv", ".tex": "latex"}


class Report:
    """The runs of one folder or several: print them, or save them as a page or a table.

    >>> from fedshift.report.read import record
    >>> run = record({"method": "fedavg", "data": "toy", "seed": 0},
    ...              [{"round": 1, "client": "a", "test": 0.5}])
    >>> print(Report([run]).table())
    fedavg on toy, accuracy in %; selection last, the last scored round: round 1; seed 0
    <BLANKLINE>
    client   test
    -------------
    a       50.00
    mean    50.00
    spread   0.00
    """

    def __init__(self, runs: Iterable[RunRecord]) -> None:
        self.runs = list(runs)
        check_same_data(self.runs)

    @classmethod
    def load(cls, *folders: str | os.PathLike[str]) -> Report:
        """The report of run folders, or of folders that hold them."""
        return cls(run for folder in folders for run in find_runs(folder))

    def rule(self, given: str | None = None) -> str:
        """The rule given, or else the protocol's, or else "last"."""
        return given or str(self.runs[0].protocol.get("select") or "last")

    def table(self, select: str | None = None, style: str = "text") -> str:
        """The clients of a single run, or one row a method of several runs."""
        if len(self.runs) == 1:
            return tables.clients(self.runs[0], self.rule(select)).render(style)
        return tables.comparison(self.runs, self.rule(select)).render(style)

    def html(self, select: str | None = None, title: str | None = None) -> str:
        """The page as text."""
        from fedshift.report.html import page

        return page(self.runs, self.rule(select), title)

    def save(self, path: str | os.PathLike[str], select: str | None = None) -> None:
        """Save under a name whose ending says what: .html, .txt, .md, .csv or .tex."""
        ending = Path(path).suffix.lower()
        if ending in (".html", ".htm"):
            write_text(path, self.html(select))
        elif ending in _STYLES:
            write_text(path, self.table(select, _STYLES[ending]) + "\n")
        else:
            known = ", ".join([".html", *_STYLES])
            raise BadValue(f"cannot save a report as '{path}': end its name with one of {known}")
