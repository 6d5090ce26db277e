"""What `fedshift predict` gives for a run that labels pixels: masks, and a line for each image."""

from __future__ import annotations

import colorsys
import io
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedshift import files
from fedshift.errors import BadValue
from fedshift.task import scores

_SHADES = 256  # what a palette image can tell apart
_TURN = 0.618  # of the colour circle from one class to the next, so that neighbours differ


def rows(
    column: str,
    names: Sequence[str],
    classes: Sequence[str],
    metric: str,
    found: Tensor,
    y: Tensor,
    known: Tensor,
) -> list[dict[str, Any]]:
    """For every image the share of its pixels that each class has, and its score where known."""
    best = found.argmax(dim=1).flatten(1)
    shares = torch.stack([(best == c).double().mean(dim=1) for c in range(len(classes))], dim=1)
    right = scores(metric, found, y).tolist()
    return [
        {column: name, "shares": dict(zip(classes, share)), metric: score if told else None}
        for name, share, score, told in zip(names, shares.tolist(), right, known.tolist())
    ]


def csv_rows(rows: Sequence[dict[str, Any]], metric: str) -> list[list[str]]:
    """The table: `file` or `index`, a column a class, and the score where any is known."""
    column, classes = next(iter(rows[0])), list(rows[0]["shares"])
    scored = any(row[metric] is not None for row in rows)
    table = [[column, *classes, *([metric] if scored else [])]]
    for row in rows:
        line = [row[column], *(f"{row['shares'][c]:.6g}" for c in classes)]
        score = "" if row[metric] is None else f"{row[metric]:.6g}"
        table.append([*line, score] if scored else line)
    return table


def write(out: Path, names: Sequence[str], classes: Sequence[str], found: Tensor) -> None:
    """The masks as one .npz file, or as a folder with a palette image for each input."""
    masks = found.argmax(dim=1).numpy()
    if len(classes) <= _SHADES:
        masks = masks.astype(np.uint8)
    if out.suffix.lower() == ".npz":
        buffer = io.BytesIO()
        np.savez_compressed(buffer, y=masks, names=np.array(names), classes=np.array(classes))
        files.write_bytes(out, buffer.getvalue())
        return
    if len(classes) > _SHADES:
        raise BadValue(
            f"the run tells {len(classes)} classes apart, and an image file holds {_SHADES}: give "
            "--out a name that ends in .npz"
        )
    for name, mask in zip(_file_names(names), masks):
        files.write_bytes(out / f"{name}.png", _png(mask))


def _file_names(names: Sequence[str]) -> list[str]:
    """Names of inputs as names of files, all in one folder.

    >>> _file_names(["fax/test/0", "images/a.jpg"])
    ['fax-test-0', 'images-a']
    """
    endings = re.compile(r"\.[A-Za-z]+$")
    found = [re.sub(r"[^\w.+-]+", "-", endings.sub("", name)).lstrip(".-") for name in names]
    twice = [name for name, count in Counter(found).items() if count > 1]
    if twice:
        raise BadValue(
            f"two inputs would both be called {twice[0]}.png: rename one, or give --out a name "
            "that ends in .npz"
        )
    return found


def _png(mask: Any) -> bytes:
    """A palette image whose numbers are the classes; the first is black."""
    image = Image.fromarray(mask)
    colours = [(0.0, 0.0, 0.0)] + [
        colorsys.hsv_to_rgb(k * _TURN % 1, 0.75, 1.0) for k in range(_SHADES - 1)
    ]
    image.putpalette([round(255 * part) for colour in colours for part in colour])
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
