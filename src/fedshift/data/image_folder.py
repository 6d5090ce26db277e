"""A folder of images as a federation: `root/<client>/<class>/*`, with or without splits.

For a segmentation the two "classes" are `images` and `masks` (see `fedshift.data.masks`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from fedshift import keys
from fedshift.data import cache, images, masks
from fedshift.data.augment import Pipeline
from fedshift.data.masks import Entry, Listing
from fedshift.data.partition import SHARES, SPLITS, check_shares, split_index
from fedshift.data.source import describe
from fedshift.errors import BadData
from fedshift.federation import Client, Federation, Samples
from fedshift.task import metric_of

_SPLIT_NAMES = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
_JUNK = frozenset({"thumbs.db", "desktop.ini"})


def folder(
    root: str | Path,
    size: int | Sequence[int] | None = None,
    *,
    name: str = "",
    pipeline: Pipeline | None = None,
    shares: Sequence[float] = SHARES,
    seed: int = 0,
    task: str = "",
    classes: Sequence[str] | None = None,
    metric: str = "",
    memory: int | None = None,
) -> Federation:
    """A federation from image files.

    Files lie in `root/<client>/<class>/`, or in `root/<client>/<train|val|test>/<class>/`. Clients
    without such splits (or with 'train' alone) are split by the names of their files, each class
    alike, so that listing order does not matter. Images become RGB, or grey where all of them are;
    of an animation the first frame counts. Clients need not have all classes.

    For a segmentation they lie in `root/<client>/images/` and, by the same name but for the ending,
    in `root/<client>/masks/` (or `root/<client>/<train|val|test>/images/` …). Masks are grey or
    palette images that hold the numbers of the classes, 0 for the background; 0 and 255 alone count
    as 0 and 1.

    Args:
        root: the folder.
        size: a side in pixels, or (height, width), to which images are stretched; may be left out
            where all have one size.
        name: of the federation; the folder's name where none is given.
        pipeline: how batches are normalised and augmented; the default only scales.
        shares: of training, validation and test where a client is split.
        seed: what that split follows from.
        task: "classification" or "segmentation" (default: the latter where all folders are called
            images and masks).
        classes: names of the numbers in masks; "0", "1"… where none are given.
        metric: what scores are (default: "accuracy", or "dice"; see `Federation`).
        memory: bytes that the pixels may take in memory (default: a quarter of what is free); above
            it they are decoded once into a file under `fedshift.data.cache.directory()`.
    """
    root = Path(root)
    chosen = images.as_size(size)
    check_shares(shares)
    listing = _scan(root)
    segments = masks.are_here(listing)
    if task:
        metric_of(task, metric)  # refuses what is none
        segments = task == "segmentation"
    if segments:
        listing = masks.paired(listing, root)
    elif classes is not None:
        raise BadData(f"the classes of {root} are called like their folders: leave `classes` out")
    entries = [e for splits in listing.values() for files in splits.values() for e in files]
    heads = images.headers([e.path for e in entries])
    target = chosen or _common_size(entries, heads)
    grey = all(h.grey for h in heads)
    names = tuple(sorted({e.label for e in entries}))
    weight = len(entries) * math.prod(target) * (1 if grey else 3)
    reader = Reader(names, target, grey, mapped=weight > cache.budget(memory), segments=segments)
    clients = []
    for client, splits in listing.items():
        parts = _with_splits(splits, root / client, shares, keys.fold(seed, "client", client))
        clients.append(Client(client, *(reader.read(parts[s]) for s in SPLITS)))
    if segments:
        names, clients = _numbered(clients, classes, root)
    return Federation(
        name=name or root.resolve().name,
        clients=tuple(clients),
        classes=names,
        pipeline=pipeline or Pipeline(),
        task="segmentation" if segments else "classification",
        metric=metric,
        source=describe(
            root,
            size=size,
            name=name,
            pipeline=pipeline,
            shares=shares,
            seed=seed,
            task=task,
            classes=classes,
            metric=metric,
        ),
    )


def _numbered(
    clients: list[Client], classes: Sequence[str] | None, root: Path
) -> tuple[tuple[str, ...], list[Client]]:
    """Names of the classes, and the clients with masks that hold their numbers."""
    parts = {f"{c.name}/{s}": getattr(c, s) for c in clients for s in SPLITS}
    names, y = masks.numbered({n: p.y for n, p in parts.items()}, classes, str(root))
    made = {n: Samples(p.x, y[n]) for n, p in parts.items()}
    return names, [Client(c.name, *(made[f"{c.name}/{s}"] for s in SPLITS)) for c in clients]


@dataclasses.dataclass(frozen=True)
class Reader:
    """Turns lists of files into samples; where they are mapped, files decode once for all runs."""

    classes: tuple[str, ...]
    size: images.Size
    grey: bool
    mapped: bool
    segments: bool = False

    def read(self, entries: list[Entry]) -> Samples:
        shape = (len(entries), 1 if self.grey else 3, *self.size)
        rows = images.decode_all([e.path for e in entries], self.size, self.grey)
        digest = self._digest(entries) if self.mapped else ""
        x = cache.store(rows, shape, "uint8", mapped=self.mapped, digest=digest)
        if self.segments:
            return Samples(x, masks.read(entries, self.size))
        labels = [self.classes.index(e.label) for e in entries]
        return Samples(x, torch.tensor(labels, dtype=torch.int64))

    def _digest(self, entries: list[Entry]) -> str:
        """What the pixels follow from: which files, as they are now, at which size."""
        facts: list[object] = [1, self.size, self.grey]  # 1: the version of the decoding
        for entry in entries:
            stat = entry.path.stat()
            facts.append((str(entry.path.resolve()), stat.st_size, stat.st_mtime_ns))
        return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _scan(root: Path) -> Listing:
    if not root.exists():
        raise BadData(f"there is no folder {root}: check the path")
    if not root.is_dir():
        raise BadData(f"{root} is a file: give the folder that holds one folder per client")
    ignored: list[Path] = []
    listing = {client.name: _client(client, ignored) for client in _folders(root)}
    if not listing:
        raise BadData(f"{root} holds no client folders: sort images into {root}/<client>/<class>/")
    ignored += _files(root)
    if ignored:
        warnings.warn(
            f"{len(ignored)} files under {root} are no images of a class and were ignored, such as "
            f"{ignored[0].relative_to(root)}",
            stacklevel=3,
        )
    return listing


def _client(place: Path, ignored: list[Path]) -> dict[str, list[Entry]]:
    below = _folders(place)
    if any(_is_image(p) for p in _files(place)):
        raise BadData(
            f"{place} holds images but should hold class folders: sort them into "
            f"{place.parent}/<client>/<class>/"
        )
    ignored += _files(place)
    named = [p for p in below if p.name.lower() in _SPLIT_NAMES]
    if named and len(named) < len(below):
        other = next(p for p in below if p not in named)
        raise BadData(
            f"{place} holds both the split '{named[0].name}' and '{other.name}': have splits with "
            "classes inside, or classes only"
        )
    splits: dict[str, list[Entry]] = {}
    for part in named or [place]:
        split = _SPLIT_NAMES[part.name.lower()] if named else ""
        if split in splits:
            raise BadData(f"{place} holds two folders for the split '{split}': merge them")
        splits[split] = _entries(part, ignored)
    if not any(splits.values()):
        raise BadData(
            f"{place} holds no images ({', '.join(sorted(images.SUFFIXES))}): fill "
            f"{place}/<class>/, or remove the folder"
        )
    return splits


def _entries(place: Path, ignored: list[Path]) -> list[Entry]:
    found = []
    for kind in _folders(place):
        for path in _files(kind):
            if _is_image(path):
                found.append(Entry(path, kind.name))
            else:
                ignored.append(path)
        ignored += [p for deeper in _folders(kind) for p in _files(deeper)]
    return found


def _with_splits(
    splits: dict[str, list[Entry]], place: Path, shares: Sequence[float], seed: int
) -> dict[str, list[Entry]]:
    filled = {split: files for split, files in splits.items() if files}
    if "train" not in filled and "" not in filled:  # what is there to test with is not trained on
        raise BadData(
            f"client '{place.name}' has no training data: {place} holds {' and '.join(filled)} but "
            "no 'train'; add it, or leave the client out"
        )
    if len(filled) > 1:
        return {split: filled.get(split, []) for split in SPLITS}
    (entries,) = filled.values()
    return dict(zip(SPLITS, _cut(entries, shares, seed)))


def _cut(entries: list[Entry], shares: Sequence[float], seed: int) -> Iterator[list[Entry]]:
    """Training, validation and test files, by a draw for each file's class and name."""
    order = torch.tensor([keys.fold(seed, e.label, e.path.name) for e in entries])
    labels = sorted({e.label for e in entries})
    y = torch.tensor([labels.index(e.label) for e in entries])
    for index in split_index(len(entries), y, shares, order=order):
        yield [entries[i] for i in index.tolist()]


def _common_size(entries: list[Entry], heads: list[images.Header]) -> images.Size:
    first = heads[0].size
    for entry, head in zip(entries, heads):
        if head.size != first:
            a, b = ("x".join(map(str, reversed(s))) for s in (first, head.size))
            raise BadData(
                f"images differ in size ({entries[0].path} has {a} pixels, {entry.path} has {b}): "
                "give one size, such as size=64 (on the command line: 'folder?size=64')"
            )
    return first


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in images.SUFFIXES


def _files(place: Path) -> list[Path]:
    # what is no folder: a link to a file that is gone must not pass unseen
    return [p for p in _visible(place) if not p.is_dir() and p.name.lower() not in _JUNK]


def _folders(place: Path) -> list[Path]:
    return [p for p in _visible(place) if p.is_dir()]


def _visible(place: Path) -> list[Path]:
    try:
        return sorted(p for p in place.iterdir() if not p.name.startswith("."))
    except OSError as error:
        raise BadData(f"cannot list {place} ({error.strerror}): check its permissions") from None
