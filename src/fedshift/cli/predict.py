"""`fedshift predict`: label new data with what a run learnt.

Labels are optional everywhere. What is read here, unlike in `fedshift.data`, is one flat list of
samples: of an .npz file every array that is called x, of a folder every image below it, of a
federation by name its test data.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedshift import data, files
from fedshift.cli import messages
from fedshift.data import images
from fedshift.data.in_memory import read_npz
from fedshift.errors import BadData, BadValue
from fedshift.trained import Trained, load

UNKNOWN = -1  # the label of a sample whose class is not known


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Samples with a name each, and their labels where they are known."""

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
    rows = _rows(trained, inputs, found)
    if args.out is not None:
        files.write_text(args.out, _csv(rows))
    if args.json:
        messages.print_json(_object(args, trained, rows, score, int(known.sum())))
    else:
        if args.out is None:
            sys.stdout.write(_csv(rows))
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
    if found.ndim != 2:
        raise BadData(
            "this run segments, and a table cannot hold its pixels: take "
            "fs.load(RUN).predict(x) in Python"
        )
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
    return Inputs(names, x, _labels(y, federation.classes, trained, text))


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
        y = torch.full((len(x),), UNKNOWN) if labels is None else _whole(labels, len(x), path)
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


def _whole(array: Any, count: int, path: Path) -> Tensor:
    if array.dtype.kind not in "iu":
        raise BadData(f"{path} has labels of type {array.dtype}: give whole numbers from 0")
    if len(array) != count:
        raise BadData(f"{path} has {count} inputs but {len(array)} labels: they must pair up")
    if len(array) and int(array.min()) < 0:
        raise BadData(f"{path} has a label {int(array.min())}: labels are whole numbers from 0")
    return torch.from_numpy(array.astype(np.int64).reshape(count, -1).squeeze(1))


def _from_folder(path: Path, trained: Trained, client: str | None) -> Inputs:
    """Every image below a folder; one that lies in a folder named like a class has that label."""
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
    place = {name: k for k, name in enumerate(trained.classes)}
    y = torch.tensor([place.get(p.parent.name, UNKNOWN) for p in found])
    rows = images.decode_all(found, (shape[1], shape[2]), grey=shape[0] == 1)
    x = torch.from_numpy(np.stack(list(rows)))
    return Inputs([p.relative_to(path).as_posix() for p in found], x, y, "file")
