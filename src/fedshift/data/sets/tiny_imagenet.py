"""Tiny-ImageNet: 200 classes of 500 photographs at 64 x 64 pixels, dealt to a hundred clients."""

from __future__ import annotations

from pathlib import Path

from fedshift import keys
from fedshift.data import images
from fedshift.data.augment import Crop, Flip, Pipeline
from fedshift.data.image_folder import Reader
from fedshift.data.masks import Entry
from fedshift.data.partition import evenly
from fedshift.data.sets import dealt, pixels, place, reading
from fedshift.data.sets.capped import capped_dirichlet
from fedshift.errors import BadData
from fedshift.federation import Federation

_CONTENTS = "train/, val/ with val_annotations.txt, and wnids.txt (unpacked tiny-imagenet-200.zip)"
CLIENTS = 100


def federation(name: str, seed: int = 0, alpha: float = 0.0) -> Federation:
    """A hundred clients; the labelled validation pictures of the publisher are the test set.

    Args:
        name: of the federation.
        seed: who gets what.
        alpha: concentration of FedFA's label skew (Dirichlet, at least ten images), 0 for none.
    """
    root = place.need("tiny-imagenet", _CONTENTS, "tiny-imagenet-200")
    if not (root / "wnids.txt").is_file():
        raise place.nothing("tiny-imagenet", root, _CONTENTS)
    classes = tuple(sorted(reading.text(root / "wnids.txt").split()))
    listed = {"train": _train(root, classes), "test": _val(root, classes)}
    counts = {split: len(entries) for split, entries in listed.items()}
    place.compare_counts("'tiny-imagenet'", counts, {"train": 100_000, "test": 10_000})
    reader = Reader(classes, (64, 64), grey=False, mapped=True)
    pool = {split: reader.read(entries) for split, entries in listed.items()}
    y, key = pool["train"].y, keys.fold(seed, "tiny-imagenet")
    parts = (
        capped_dirichlet(y, CLIENTS, alpha, most=len(y) / CLIENTS, minimum=10, seed=key)
        if alpha
        else evenly(y, CLIENTS, seed=key)
    )
    tests = dealt.shared_test(pool["test"], CLIENTS, key)
    return Federation(
        name,
        dealt.clients(pool, parts, tests, val=0.0, seed=key),
        classes,
        Pipeline(pixels.MEAN, pixels.STD, augment=(Crop(8), Flip(0.5))),
        recommended={
            "model": "small-cnn", "rounds": 500, "epochs": 5, "batch": 20, "lr": 0.1,
            "participation": 0.05,
        },
    )  # fmt: skip


def _train(root: Path, classes: tuple[str, ...]) -> list[Entry]:
    found = []
    for c in classes:
        folder = root / "train" / c / "images"
        if not folder.is_dir():
            raise BadData(f"{folder} is not there: unpack tiny-imagenet-200.zip again")
        files = (p for p in place.inside(folder) if p.suffix.lower() in images.SUFFIXES)
        found += [Entry(path, c) for path in files]
    return found


def _val(root: Path, classes: tuple[str, ...]) -> list[Entry]:
    path = root / "val" / "val_annotations.txt"
    rows = [line.split("\t") for line in reading.text(path).splitlines() if line.strip()]
    if any(len(row) < 2 or row[1] not in classes for row in rows):
        raise BadData(f"{path} is no list of pictures and classes: unpack the set again")
    return [Entry(root / "val" / "images" / row[0], row[1]) for row in rows]
