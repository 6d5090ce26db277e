"""The learning curve of one method, for its page: a picture that stands in a file of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fedshift.report import plots
from fedshift.report.summary import Value

_GREY = 6  # its place in the palette
_LARGER = 1.6
_STYLE = (
    "<style>svg { color: #3d3d3d } "
    "@media (prefers-color-scheme: dark) { svg { color: #d0d0d0 } }</style>"
)


def learning_curve(
    own: Mapping[str, Mapping[int, Value]],
    beside: Mapping[str, Mapping[int, Value]],
    title: str,
    name: str,
) -> str:
    """Scores against rounds as an SVG file: own lines in colour, what is beside them in grey.

    >>> points = {1: Value(0.5, None, 1), 2: Value(0.75, None, 1)}
    >>> svg = learning_curve({"mean": points}, {}, "Accuracy", "x")
    >>> svg == learning_curve({"mean": points}, {}, "Accuracy", "x"), svg[:4]
    (True, '<svg')
    """
    # places without points pass over colours
    blank: dict[str, Mapping[int, Value]] = {f"blank {k}": {} for k in range(len(own), _GREY)}
    series = {**own, **blank, **beside}
    places = {label: k for k, (label, points) in enumerate(series.items()) if points}
    svg = plots.svg_of(name, lambda axes: plots.score_lines(axes, series, title), legend=places)
    return _alone(svg)


def _alone(svg: str) -> str:
    """An inline figure as a file: with a size, and a colour of text for white and for dark."""
    head = re.match(r"<svg [^>]*>", svg)
    box = re.search(r'viewBox="([^"]+)"', svg)
    assert head is not None and box is not None
    width, height = (round(_LARGER * float(v)) for v in box[1].split()[2:])
    opening = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{box[1]}" width="{width}" height="{height}" role="img">'
    )
    return f"{opening}{_STYLE}{svg[head.end() :]}\n"
