"""Folders of images with masks: which mask belongs to which image, and what its numbers mean."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedshift.data import images
from fedshift.errors import BadData

IMAGES, MASKS = "images", "masks"  # names of the two folders
_WHITE = 255


@dataclasses.dataclass(frozen=True)
class Entry:
    """An image file, the class whose folder it lies in, and its mask where it has one."""

    path: Path
    label: str
    mask: Path | None = None


Listing = dict[str, dict[str, list[Entry]]]  # client -> split ("" where there are none) -> files


def are_here(listing: Listing) -> bool:
    """Whether the folders of all clients are called images and masks, and nothing else."""
    return {e.label.lower() for e in _entries(listing)} == {IMAGES, MASKS}


def paired(listing: Listing, root: Path) -> Listing:
    """The images with their masks, of the same name but for the ending."""
    strange = next((e for e in _entries(listing) if e.label.lower() not in (IMAGES, MASKS)), None)
    if strange is not None or not are_here(listing):
        seen = "no masks" if strange is None else f"'{strange.label}'"
        raise BadData(
            f"{root} holds {seen}, and a segmentation takes {root}/<client>/{IMAGES}/ and "
            f"{root}/<client>/{MASKS}/ (or these within train, val and test)"
        )
    found = {
        client: {split: _pairs(entries) for split, entries in splits.items()}
        for client, splits in listing.items()
    }
    _check_sizes(_entries(found))
    return found


def beside(image: Path) -> Path | None:
    """The mask of an image that lies in a folder called images, where there is one."""
    if image.parent.name.lower() != IMAGES:
        return None
    folders = [p for p in image.parent.parent.iterdir() if p.name.lower() == MASKS and p.is_dir()]
    near = (p for folder in folders for p in folder.glob(f"{glob.escape(image.stem)}.*"))
    return next((p for p in near if p.suffix.lower() in images.SUFFIXES), None)


def _entries(listing: Listing) -> list[Entry]:
    return [e for splits in listing.values() for entries in splits.values() for e in entries]


def _pairs(entries: list[Entry]) -> list[Entry]:
    masks = {e.path.stem: e.path for e in entries if e.label.lower() == MASKS}
    pictures = [e for e in entries if e.label.lower() == IMAGES]
    for entry in pictures:
        if entry.path.stem not in masks:
            raise BadData(
                f"{entry.path} has no mask: put one called {entry.path.stem}.png beside it, into "
                f"the folder {MASKS}, or take the image away"
            )
    left = set(masks) - {e.path.stem for e in pictures}
    if left:
        raise BadData(f"{masks[min(left)]} is the mask of no image: take it away")
    return [Entry(e.path, IMAGES, masks[e.path.stem]) for e in pictures]


def _check_sizes(entries: list[Entry]) -> None:
    heads = images.headers([e.path for e in entries])
    masks = images.headers([e.mask for e in entries if e.mask is not None])
    for entry, head, mask in zip(entries, heads, masks):
        if head.size != mask.size:
            a, b = ("x".join(map(str, reversed(s))) for s in (mask.size, head.size))
            raise BadData(f"{entry.mask} has {a} pixels, its image {b}: make them one size")


def read(entries: Sequence[Entry], size: images.Size) -> Tensor:
    """The numbers in the masks, uint8 [N, H, W]; sizes change without mixing numbers."""
    rows = [images.mask(e.mask, size) for e in entries if e.mask is not None]
    return torch.from_numpy(np.stack(rows)) if rows else torch.zeros((0, *size), dtype=torch.uint8)


def numbered(
    parts: Mapping[str, Tensor], classes: Sequence[str] | None, where: str
) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    """Names of the classes, and the masks as their numbers: black and white become 0 and 1.

    >>> names, y = numbered({"a": torch.tensor([[[0, 255]]], dtype=torch.uint8)}, None, "here")
    >>> names, y["a"].tolist()
    (('0', '1'), [[[0, 1]]])
    """
    counts = sum(torch.bincount(y.flatten(), minlength=_WHITE + 1) for y in parts.values())
    values: list[int] = torch.as_tensor(counts).nonzero().flatten().tolist()
    two_tones = set(values) <= {0, _WHITE} and _WHITE in values and len(classes or "xy") == 2
    if two_tones:
        parts, values = {n: (y == _WHITE).to(torch.uint8) for n, y in parts.items()}, [0, 1]
    if classes and values[-1] >= len(classes):
        raise BadData(
            f"the masks in {where} hold {values[-1]}, and the {len(classes)} classes count from 0 "
            f"to {len(classes) - 1}: give a name for each number, or number the masks anew"
        )
    if not classes and values != list(range(len(values))):
        some = ", ".join(map(str, values[:6])) + (", …" if len(values) > 6 else "")
        raise BadData(
            f"the masks in {where} hold the numbers {some}: count the classes from 0 without a "
            "gap (0 and 255 alone will do), or name them all with `classes`; no JPEG, which "
            "blurs numbers"
        )
    return tuple(classes or map(str, range(len(values)))), dict(parts)
