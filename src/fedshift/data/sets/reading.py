"""The publishers' file formats, read to uint8 images [N, C, H, W] and labels; nothing is unpickled.

Every function names the file in its error when it is cut short or of another kind.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import importlib
import json
import lzma
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedshift.data.in_memory import read_npz
from fedshift.data.in_memory import samples as checked
from fedshift.data.sets import once, place
from fedshift.errors import BadData
from fedshift.federation import Samples
from fedshift.tree import Tree

Array = np.ndarray[Any, Any]
Splits = dict[str, Samples]  # "train", "test" -> images and labels
_UNSIGNED_BYTE = 8  # the code of uint8 in an idx file


def raw(path: Path) -> bytes:
    """A file's bytes, unpacked where its name ends in .gz, .bz2 or .xz."""
    unpack = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
    with explained(path):
        content = path.read_bytes()
        return unpack.get(path.suffix, bytes)(content)


def packed_or_not(folder: Path, name: str) -> Path | None:
    """A file of that name in a folder, plain or with .gz behind."""
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def kept(folder: Path, read: Callable[[], Splits]) -> Splits:
    """What `read` makes of the files in a folder, decoded once."""

    def tree() -> Tree:
        return {f"{s}/{a}": getattr(part, a) for s, part in read().items() for a in "xy"}

    paths = sorted(p for p in folder.rglob("*") if p.is_file())
    found = once.decoded("splits", paths, tree)
    splits = sorted({name.partition("/")[0] for name in found}, reverse=True)  # training first
    return {s: Samples(found[f"{s}/x"], found[f"{s}/y"]) for s in splits}


def text(path: Path) -> str:
    """A text file."""
    with explained(path):
        return path.read_text(encoding="utf-8")


def listed(path: Path) -> set[tuple[str, str]]:
    """The images that a list of `domain/class/file label` names: class folder, plain, and file."""
    found = set()
    for line in text(path).splitlines():
        parts = line.rpartition(" ")[0].split("/")
        if len(parts) >= 2:
            found.add((place.plain(parts[-2]), parts[-1]))
        elif line.strip():
            raise BadData(f"{path} is no list of 'domain/class/file label': download it again")
    return found


def idx_pairs(places: Sequence[Path], names: Mapping[str, tuple[str, str]]) -> Splits:
    """Images and labels in idx files, for each split by the names of the two, wherever they lie."""
    found = {}
    for split, pair in names.items():
        for folder in places:
            x, y = (packed_or_not(folder, name) for name in pair)
            if x and y:
                found[split] = samples(idx(x), idx(y), x)
                break
    return found


def idx(path: Path) -> Array:
    """The array of an idx file (MNIST's format), packed or not."""
    content = raw(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTE:
        raise BadData(f"{path} is no idx file of bytes: download it again")
    axes = content[3]
    shape = np.frombuffer(content, ">u4", min(axes, (len(content) - 4) // 4), 4).tolist()
    body = content[4 + 4 * axes :]
    if len(shape) < axes or len(body) != math.prod(shape):
        raise BadData(f"{path} is cut short or too long for its head: download it again")
    return np.frombuffer(body, np.uint8).reshape(shape)


def samples(x: Array, y: Array, where: str | Path) -> Samples:
    """uint8 images [N, H, W], [N, H, W, 3] or [N, 3, H, W] and labels, checked."""
    if x.dtype != np.uint8:
        raise BadData(f"{where} has images of type {x.dtype}: images are uint8")
    return checked((x, y.astype(np.int64).reshape(-1)), str(where))


def npz(folder: Path) -> Splits:
    """All `x_train`, `y_train`, `x_test`, `y_test` in the .npz files of a folder; may be empty.

    An array `x_train_d` holds colour images as differences: planes G, R-G, B-G [N, 3, H, W], each
    entry less its left and upper neighbours, modulo 256.
    """
    found: Splits = {}
    for path in sorted(folder.glob("*.npz")):
        arrays = read_npz(path)
        for split in ("train", "test"):
            x = f"x_{split}" if f"x_{split}" in arrays else f"x_{split}_d"
            if x not in arrays:
                continue
            if f"y_{split}" not in arrays:
                raise BadData(f"{path} has '{x}' but no 'y_{split}': add the labels")
            if split in found:
                raise BadData(f"{folder} holds 'x_{split}' in two .npz files: keep one")
            images = summed(arrays[x]) if x.endswith("_d") else arrays[x]
            found[split] = samples(images, arrays[f"y_{split}"], path)
    return found


def summed(d: Array) -> Array:
    """RGB [N, 3, H, W] from the differences that `npz` explains.

    >>> summed(np.array([[[[5, 1]], [[2, 0]], [[255, 0]]]], np.uint8)).tolist()
    [[[[7, 8]], [[5, 6]], [[4, 5]]]]
    """
    p = np.cumsum(np.cumsum(d, axis=2, dtype=np.uint8), axis=3, dtype=np.uint8)
    return np.stack([p[:, 1] + p[:, 0], p[:, 0], p[:, 2] + p[:, 0]], axis=1)


def cropped_digits(path: Path) -> Samples:
    """A .mat file of SVHN's cropped digits: X [32, 32, 3, N], y with 10 for the digit 0."""
    scipy = _module("scipy.io", f"{path} is a MATLAB file", "scipy")
    with explained(path):
        found = scipy.loadmat(path, variable_names=("X", "y"))
        x, y = np.asarray(found["X"]), np.asarray(found["y"]).astype(np.int64)
        return samples(np.ascontiguousarray(x.transpose(3, 2, 0, 1)), y % 10, path)


def libsvm(path: Path, side: int) -> tuple[Array, Array]:
    """Dense rows of `label 1:value 2:value …` as float images [N, side, side] and labels."""
    with explained(path):
        rows = [line.split() for line in raw(path).decode("ascii").splitlines() if line.strip()]
        y = np.array([float(row[0]) for row in rows]).astype(np.int64)
        x = np.array([[float(v.partition(":")[2]) for v in row[1:]] for row in rows])
        return x.reshape(-1, side, side), y


def h5(path: Path) -> dict[str, tuple[Array, Array]]:
    """`data` and `target` of the groups `train` and `test` of an HDF5 file."""
    h5py = _module("h5py", f"{path} is an HDF5 file", "h5py")
    with explained(path), h5py.File(path, "r") as file:
        return {
            split: (np.asarray(file[split]["data"]), np.asarray(file[split]["target"]))
            for split in ("train", "test")
        }


def json_of(path: Path) -> Any:
    """What a JSON file holds."""
    with explained(path):
        return json.loads(raw(path))


def nifti(path: Path) -> Array:
    """The volume of a NIfTI file."""
    nibabel = _module("nibabel", f"{path} is a NIfTI file", "nibabel")
    with explained(path):
        return np.asarray(nibabel.load(path).dataobj, dtype=np.float64)


def records(path: Path, labels: int) -> tuple[Array, Array]:
    """CIFAR's binary form: `labels` bytes, then 3 x 32 x 32 bytes, again and again."""
    content = np.frombuffer(raw(path), np.uint8)
    length = labels + 3 * 32 * 32
    if not len(content) or len(content) % length:
        raise BadData(f"{path} has {len(content)} bytes, not records of {length}: get it again")
    table = content.reshape(-1, length)
    return table[:, labels:].reshape(-1, 3, 32, 32), table[:, :labels]


def whole(splits: Mapping[str, Samples]) -> Samples:
    """Everything that a set has, training and test, as one pool."""
    parts = list(splits.values())
    return Samples(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]))


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Whatever a reader stumbles over becomes an error that names the file."""
    try:
        yield
    except BadData:
        raise
    except Exception as error:  # readers of foreign formats raise whatever they stumble over
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BadData(f"cannot read {path} ({reason}): download it again") from None


def _module(name: str, why: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise BadData(
            f"{why}, which {package} reads: install it (pip install {package}), or save the images "
            "as .npz"
        ) from None
