"""`fedshift predict`: label new data, or their pixels, with what a run learnt.

Labels are optional everywhere. What is read here, unlike in `fedshift.data`, is one flat list of
samples: of an .npz file every array that is called x, of a folder every image below it, of a
federation by name its test data.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedshift import data, files
from fedshift.cli import messages, segments
from fedshift.data import images, masks
from fedshift.data.in_memory import read_npz
from fedshift.errors import BadData, BadValue
from fedshift.trained import Trained, load

UNKNOWN = -1  # the label of a sample whose class is not known


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Samples with a name each, and their labels (or those of their pixels) where known."""

    names: list[str]
    x: Tensor
    y: Tensor
    column: str = "index"  # what the names are


def command(args: argparse.Namespace) -> None:
    """Predict, print or save the table, and say the score where there are labels."""
    _check_out(args.out)
    trained = load(args.run, args.device)
    inputs = read(args.data, trained, args.client)
    found = trained.predict(inputs.x, args.client, args.unseen)
    known = _known(inputs.y)
    score = trained.grade(found[known], inputs.y[known]) if bool(known.any()) else None
    rows, table = _tables(trained, inputs, found, known)
    if args.out is not None:
        _write(args.out, trained, inputs, found, table)
    if args.json:
        messages.print_json(_object(args, trained, rows, score, int(known.sum())))
    else:
        if args.out is None:
            sys.stdout.write(table)
        if score is not None:
            messages.note(
                f"{trained.metric} {100 * score:.2f} % on {int(known.sum())} labelled samples"
            )
        if args.out is not None:
            messages.note(f"{len(rows)} predictions are in {args.out}")


def _check_out(out: str | None) -> None:
    """Refuse to write over what is no table: a run's own files, the data…"""
    if out is not None and Path(out).is_file() and Path(out).suffix.lower() != ".csv":
        raise BadValue(f"--out {out} is there and no .csv file: choose another name")
    if out is not None and Path(out).is_dir() and any(Path(out).iterdir()):
        raise BadValue(f"--out {out} holds something already: choose another folder")


def _tables(
    trained: Trained, inputs: Inputs, found: Tensor, known: Tensor
) -> tuple[list[dict[str, Any]], str]:
    """A row for each sample, and all of them as a table in CSV."""
    if not trained.segments:
        rows = _rows(trained, inputs, found)
        return rows, _csv(rows)
    said = trained.classes, trained.metric, found, inputs.y, known
    rows = segments.rows(inputs.column, inputs.names, *said)
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(segments.csv_rows(rows, trained.metric))
    return rows, out.getvalue()


def _write(out: str, trained: Trained, inputs: Inputs, found: Tensor, table: str) -> None:
    """The table; of a run that segments the masks, and in a folder the table too."""
    path = Path(out)
    if trained.segments and path.suffix.lower() != ".csv":
        segments.write(path, inputs.names, trained.classes, found)
        if path.suffix.lower() != ".npz":
            files.write_text(path / "table.csv", table)
        return
    files.write_text(path, table)


def _object(
    args: argparse.Namespace,
    trained: Trained,
    rows: list[dict[str, Any]],
    score: float | None,
    labelled: int,
) -> dict[str, Any]:
    found = {
        "run": args.run,
        "method": trained.plan.method.name,
        "data": args.data,
        "client": args.client,
        "unseen": args.unseen,
        "classes": list(trained.classes),
        "samples": len(rows),
        "labelled": labelled,
        "metric": trained.metric,
        "score": score,
        "out": args.out,
    }
    return found if args.out is not None else {**found, "predictions": rows}


def _known(y: Tensor) -> Tensor:
    """Which samples have labels; a segmentation has them for all pixels or none."""
    return (y != UNKNOWN).flatten(1).all(dim=1) if y.ndim > 1 else y != UNKNOWN


def _rows(trained: Trained, inputs: Inputs, found: Tensor) -> list[dict[str, Any]]:
    names = trained.classes
    rows = []
    for name, row, best, y in zip(
        inputs.names, found.tolist(), found.argmax(dim=1).tolist(), inputs.y.tolist()
    ):
        line: dict[str, Any] = {inputs.column: name, "label": names[best]}
        line["probabilities"] = dict(zip(names, row))
        line["truth"] = None if y == UNKNOWN else names[y]
        rows.append(line)
    return rows


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    """`file` or `index`, `label`, a column a class, and `truth` where any is known."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    classes = list(rows[0]["probabilities"])
    truth = any(row["truth"] is not None for row in rows)
    column = next(iter(rows[0]))
    writer.writerow([column, "label", *classes, *(["truth"] if truth else [])])
    for row in rows:
        shares = [f"{row['probabilities'][c]:.6g}" for c in classes]
        line = [row[column], row["label"], *shares]
        writer.writerow([*line, row["truth"] or ""] if truth else line)
    return out.getvalue()


# ---------------------------------------------------------------------------- reading


def read(text: str, trained: Trained, client: str | None) -> Inputs:
    """The samples of a file, a folder or a federation; the client's alone where it has some."""
    path = Path(text).expanduser()
    if text not in data.names() and path.suffix.lower() == ".npz":
        _warn_if_known(path, trained)
        return _from_npz(path, trained, client)
    if text not in data.names() and path.is_dir():
        _warn_if_known(path, trained)
        return _from_folder(path, trained, client)
    return _from_federation(text, trained, client)


def _warn_if_known(path: Path, trained: Trained) -> None:
    if trained.source.partition("?")[0] == str(path.resolve()):
        messages.warning(
            f"the run was trained on samples of {path}: a score on all of them flatters it"
        )


def _from_federation(text: str, trained: Trained, client: str | None) -> Inputs:
    federation = data.load(text)
    clients = [c for c in federation.clients if c.name == client] or list(federation.clients)
    parts = [c for c in clients if len(c.test)]
    if not parts:
        raise BadData(f"'{text}' has no test data: give an .npz file or a folder")
    messages.note(f"predicting the test data of {', '.join(c.name for c in parts)}")
    names = [f"{c.name}/test/{k}" for c in parts for k in range(len(c.test))]
    x, y = (torch.cat([getattr(c.test, axis) for c in parts]) for axis in ("x", "y"))
    return Inputs(names, x, _labels(y.long(), federation.classes, trained, text))


def _labels(y: Tensor, classes: Sequence[str], trained: Trained, where: str) -> Tensor:
    """Labels in the order of the run's classes; a class that it does not know cannot be scored."""
    if tuple(classes) == trained.classes:
        return y
    place = [trained.classes.index(c) if c in trained.classes else UNKNOWN for c in classes]
    if UNKNOWN in place:
        strange = [c for c, k in zip(classes, place) if k == UNKNOWN]
        messages.warning(
            f"{where} has classes that the run does not know ({', '.join(strange[:5])}): "
            "their samples are not scored"
        )
    return torch.tensor(place)[y]


def _from_npz(path: Path, trained: Trained, client: str | None) -> Inputs:
    """Every array `x`, `<client>/x` or `<client>/<split>/x`, with its `y` where there is one."""
    arrays = read_npz(path)
    places = [n[:-1] for n in arrays if n == "x" or (n[-1:] == "x" and n[-2:-1] in "/._")]
    if not places:
        raise BadData(f"{path} holds no array called x: save it with np.savez('{path.name}', x=x)")
    mine = [p for p in places if client is not None and p.startswith(client) and p != ""]
    names: list[str] = []
    xs, ys = [], []
    for place in mine or places:
        x = _tensor(arrays[f"{place}x"], f"{path}: {place}x")
        labels = arrays.get(f"{place}y")
        y = _unknown(len(x), trained)
        if labels is not None:
            y = _whole(labels, y.shape, path)
        names += [f"{place.rstrip('/._')}/{k}" if place else str(k) for k in range(len(x))]
        xs.append(x)
        ys.append(y)
    if len({tuple(x.shape[1:]) for x in xs}) > 1:
        raise BadData(f"{path} holds inputs of unlike shapes: save those of one shape")
    classes = [str(c) for c in arrays["classes"].tolist()] if "classes" in arrays else None
    y = torch.cat(ys)
    if classes is not None and bool((y != UNKNOWN).all()):
        y = _labels(y, classes, trained, str(path))
    return Inputs(names, torch.cat(xs), y)


def _tensor(array: Any, where: str) -> Tensor:
    if array.dtype.kind == "f" or array.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))))
    raise BadData(f"{where} has type {array.dtype}: give uint8 (0 to 255) or floats")


def _unknown(count: int, trained: Trained) -> Tensor:
    """Labels of samples, or of all their pixels, of which none is known."""
    return torch.full((count, *(trained.plan.facts.shape[1:] if trained.segments else ())), UNKNOWN)


def _whole(array: Any, shape: tuple[int, ...], path: Path) -> Tensor:
    if array.dtype.kind not in "iu":
        raise BadData(f"{path} has labels of type {array.dtype}: give whole numbers from 0")
    if len(array) != shape[0]:
        raise BadData(f"{path} has {shape[0]} inputs but {len(array)} labels: they must pair up")
    if len(array) and int(array.min()) < 0:
        raise BadData(f"{path} has a label {int(array.min())}: labels are whole numbers from 0")
    if array.size != math.prod(shape):
        raise BadData(
            f"{path} has labels of shape {list(array.shape)}: the run takes {list(shape)}, one for "
            f"each {'pixel' if len(shape) > 1 else 'sample'}"
        )
    return torch.from_numpy(array.astype(np.int64).reshape(shape))


def _from_folder(path: Path, trained: Trained, client: str | None) -> Inputs:
    """Every image below a folder; one that lies in a folder named like a class has that label.

    For a run that segments, an image of a folder `images` has the labels of the one of its name in
    the folder `masks` beside it, and images of such folders are no inputs.
    """
    shape = trained.plan.facts.shape
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise BadData(
            f"the run learnt inputs of shape {list(shape)}, which are no images: give an .npz file"
        )
    root = path / client if client is not None and (path / client).is_dir() else path
    found = sorted(
        p
        for p in root.rglob("*")
        if p.suffix.lower() in images.SUFFIXES and not p.name.startswith(".") and p.is_file()
    )
    if not found:
        known = ", ".join(sorted(images.SUFFIXES))
        raise BadData(f"{root} holds no images ({known}): check the path")
    size = shape[1], shape[2]
    if trained.segments:
        found, y = _masked(found, trained, size, path)
    else:
        place = {name: k for k, name in enumerate(trained.classes)}
        y = torch.tensor([place.get(p.parent.name, UNKNOWN) for p in found])
    rows = images.decode_all(found, size, grey=shape[0] == 1)
    x = torch.from_numpy(np.stack(list(rows)))
    return Inputs([p.relative_to(path).as_posix() for p in found], x, y, "file")


def _masked(
    found: list[Path], trained: Trained, size: images.Size, path: Path
) -> tuple[list[Path], Tensor]:
    """The images that are no masks, and the labels of their pixels where there are masks."""
    beside = {p: mask for p in found if (mask := masks.beside(p)) is not None}
    taken = set(beside.values())
    inputs = [p for p in found if p not in taken]
    known = [k for k, p in enumerate(inputs) if p in beside]
    y = _unknown(len(inputs), trained)
    if known:
        rows = torch.from_numpy(np.stack([images.mask(beside[inputs[k]], size) for k in known]))
        y[known] = masks.numbered({"": rows}, trained.classes, str(path))[1][""].long()
    return inputs, y
