"""Charts as SVG text: curves over rounds, scores of the clients, bytes against score.

Figures are made without pyplot, and settings hold only while one is drawn: nothing global changes.
Equal records give equal text. Lines of text and axes have the colour of the page around them
(`currentColor`), so the charts can be read on white and on dark.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from fedshift.report.read import RunRecord
from fedshift.report.summary import Value, by_method, summarise
from fedshift.report.tables import MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart, without its yellow and black,
# which vanish on white and on dark. Beyond seven methods the dashes differ.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C")
DASHES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")
MARKERS = "osD^vPX"

_INK = "#123456"  # replaced by currentColor: no palette colour, so nothing else is caught
_SETTINGS = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.parse_math": False,  # a client may be called "$a$"
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _INK,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


def curves(runs: Sequence[RunRecord], split: str = "test", view: str = "") -> str:
    """The mean score over clients against rounds: a line a method, a band of one deviation.

    Where no view is given, the scores are of the model that each method declares.
    """
    series: dict[str, dict[int, Value]] = {}
    for method, rs in by_method(runs).items():
        found: dict[int, list[float]] = {}
        for run in rs:
            for r in run.rounds:
                if (mean := r.mean(split, view or run.view)) is not None:
                    found.setdefault(r.round, []).append(mean)
        series[method] = {r: Value.of(found[r]) for r in sorted(found)}
    words = {"test": "Test", "val": "Validation"}[split]
    personal = ", personal models" if view == "personal" else ""
    title = f"{words} {runs[0].metric}{personal}, mean of clients"
    return svg_of(
        f"curves-{split}-{view or 'declared'}",
        lambda axes: score_lines(axes, series, title),
        legend=_places([m for m, points in series.items() if points], list(series)),
    )


def losses(run: RunRecord) -> str:
    """The terms of the training loss of one run against rounds."""
    terms: dict[str, dict[int, Value]] = {}
    for r in run.rounds:
        for name, loss in r.loss.items():
            if math.isfinite(loss):
                terms.setdefault(name, {})[r.round] = Value.of([loss])
    return svg_of(
        "losses",
        lambda axes: score_lines(axes, terms, "Training loss", percent=False),
        legend=_places(list(terms), list(terms)),
    )


def client_dots(runs: Sequence[RunRecord], rule: str = "last") -> str:
    """The score of every client: a dot a method, a whisker of one deviation over seeds."""
    summaries = summarise(runs, rule)
    seen = list(dict.fromkeys(c for s in summaries for c in s.scores))
    unseen = list(dict.fromkeys(c for s in summaries for c in s.unseen))
    names = [*seen, *(f"{c} (unseen)" for c in unseen)]

    def draw(axes: Axes) -> None:
        step = 0.7 / len(summaries)
        for k, s in enumerate(summaries):
            scores = [s.scores.get(c) for c in seen] + [s.unseen.get(c) for c in unseen]
            for place, value in enumerate(scores):
                if value is None:
                    continue
                y = place + (k - (len(summaries) - 1) / 2) * step
                if value.std:
                    ends = [100 * (value.mean - value.std), 100 * (value.mean + value.std)]
                    axes.plot(ends, [y, y], color=_colour(k), linewidth=1.2)
                axes.plot(100 * value.mean, y, **_mark(k))
        for border in range(1, len(names)):
            axes.axhline(border - 0.5, color=_INK, alpha=0.15, linewidth=0.6)
        axes.set_yticks(range(len(names)), [_short(n) for n in names])
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(f"{runs[0].metric} in %")
        axes.set_title("Test score of each client")

    rows = len(names) * max(1.0, 0.5 + 0.22 * len(summaries))
    return svg_of(
        "clients",
        draw,
        legend=_places([s.method for s in summaries], [s.method for s in summaries]),
        marks=True,
        height=min(9.0, max(2.2, 1.0 + 0.3 * rows)),
    )


def traffic(runs: Sequence[RunRecord], rule: str = "last") -> str:
    """The mean score against what a round sends, up and down together."""
    summaries = summarise(runs, rule)
    known = [s.method for s in summaries if s.bytes_up or s.bytes_down]

    def draw(axes: Axes) -> None:
        most = 0.0
        for k, s in enumerate(summaries):
            if s.method not in known:
                continue
            both = [v.mean / MIB for v in (s.bytes_up, s.bytes_down) if v is not None]
            most = max(most, sum(both))
            if s.mean.std:
                ends = [100 * (s.mean.mean - s.mean.std), 100 * (s.mean.mean + s.mean.std)]
                axes.plot([sum(both)] * 2, ends, color=_colour(k), linewidth=1.2, clip_on=False)
            # Who sends nothing stands on the axis and must not be cut in half by it.
            axes.plot(sum(both), 100 * s.mean.mean, clip_on=False, zorder=3, **_mark(k))
        axes.margins(y=0.15)
        axes.set_xlim(0, 1.12 * most or 1.0)  # from zero, so that lengths compare
        axes.set_xlabel("MiB a round, up and down, all clients")
        axes.set_ylabel(f"{runs[0].metric} in %")
        axes.set_title("Score against traffic")

    legend = _places(known, [s.method for s in summaries])
    return svg_of("traffic", draw, legend=legend, marks=True)


def score_lines(
    axes: Axes, series: Mapping[str, Mapping[int, Value]], title: str, percent: bool = True
) -> None:
    """Draw a line for each series that has points, in the colour of its place."""
    from matplotlib.ticker import MaxNLocator

    scale = 100.0 if percent else 1.0
    for k, points in enumerate(series.values()):
        if not points:
            continue
        rounds = list(points)
        mean = [scale * v.mean for v in points.values()]
        std = [scale * (v.std or 0.0) for v in points.values()]
        mark = "o" if len(rounds) == 1 else ""  # a single point has no line to be seen by
        axes.plot(rounds, mean, color=_colour(k), linestyle=_dash(k), marker=mark)
        if any(std):
            low, high = zip(*((m - s, m + s) for m, s in zip(mean, std)))
            axes.fill_between(rounds, low, high, color=_colour(k), alpha=0.18, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.margins(x=0.02)
    axes.set_xlabel("round")
    axes.set_ylabel("in %" if percent else "loss")
    axes.set_title(title)
    if not any(series.values()):
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center")


def _places(shown: Sequence[str], everything: Sequence[str]) -> dict[str, int]:
    """The names of a legend with their places, which give colours: the same ones in every chart."""
    return {name: everything.index(name) for name in shown} if len(everything) > 1 else {}


def svg_of(
    name: str,
    draw: Callable[[Axes], None],
    legend: Mapping[str, int],
    marks: bool = False,
    height: float = 2.6,
) -> str:
    """Draw into a figure 4.6 inches wide, the legend in lines of its own below, and print it."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    longest = max(map(len, legend), default=0)
    columns = 3 if longest <= 14 else 2 if longest <= 26 else 1
    below = 0.2 * math.ceil(len(legend) / columns) + 0.1 if legend else 0.0
    settings: Any = {**_SETTINGS, "svg.hashsalt": name}
    with rc_context(settings), warnings.catch_warnings():
        # Names are kept as text: what this font lacks is drawn in one of the reader's.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(4.6, height + below), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.add_subplot())
        if legend:
            _legend(figure, legend, columns, marks)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return _inline(out.getvalue(), name)


def _legend(figure: Figure, names: Mapping[str, int], columns: int, marks: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], **_mark(k))
        if marks
        else Line2D([], [], color=_colour(k), linestyle=_dash(k))
        for k in names.values()
    ]
    # Matplotlib passes over names that begin with an underscore; a space keeps them.
    labels = [_short(" " + n if n.startswith("_") else n, 56) for n in names]
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, handlelength=1.8)


def _inline(svg: str, name: str) -> str:
    """A figure as it may stand inside a page: no prolog, own ids, scaling, the page's colour."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    used = set(re.findall(r"url\(#([^)]+)\)", svg)) | set(re.findall(r'href="#([^"]+)"', svg))
    svg = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = svg.replace(_INK, "currentColor")
    head = re.match(r"<svg [^>]*>", svg)
    if head is None:
        return svg
    box = re.search(r'viewBox="([^"]+)"', head[0])
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{box[1] if box else ""}" role="img" '
        f'style="width:100%;max-width:36rem;height:auto">'
    )
    return opening + svg[head.end() :].rstrip()


def _colour(k: int) -> str:
    return PALETTE[k % len(PALETTE)]


def _dash(k: int) -> Literal["-", "--", ":", "-."]:
    return DASHES[k // len(PALETTE) % len(DASHES)]


def _mark(k: int) -> dict[str, Any]:
    """A dot of a method; beyond seven it is hollow."""
    fill = _colour(k) if k < len(PALETTE) else "none"
    marker = MARKERS[k % len(MARKERS)]
    return {
        "color": _colour(k),
        "marker": marker,
        "linestyle": "none",
        "markersize": 6,
        "markerfacecolor": fill,
    }


def _short(text: str, most: int = 20) -> str:
    """A long name without its middle: what tells names apart stands at their ends."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}…{text[-(most - most // 2 - 1) :]}"
