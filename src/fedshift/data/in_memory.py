"""Federations from arrays in memory, and from one .npz file."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedshift import keys
from fedshift.data.augment import Pipeline
from fedshift.data.partition import SHARES, SPLITS, split
from fedshift.data.source import describe
from fedshift.errors import BadData, UnknownName
from fedshift.federation import Client, Federation, Samples, finite

Pair = tuple[Any, Any]
_SEPARATORS = ("/", "__", ".")
_AMBIGUOUS = (1, 3, 4)  # sizes of an axis that may be channels
_MOST_CLASSES = 100_000  # beyond, a label is a mistake, and tables of its size would fill memory


def arrays(
    clients: Mapping[str, Mapping[str, Pair] | Pair],
    *,
    name: str = "arrays",
    classes: Sequence[str] | None = None,
    pipeline: Pipeline | None = None,
    shares: Sequence[float] = SHARES,
    seed: int = 0,
    task: str = "",
    metric: str = "",
    source: str = "",
) -> Federation:
    """A federation from numpy arrays or torch tensors.

    Inputs are images [N, H, W], [N, C, H, W] or [N, H, W, C], or vectors [N, D]; uint8 stays uint8
    and counts 0 to 255, floats are taken as they are. Labels are whole numbers from 0, one for each
    input, or in a segmentation one for each pixel, [N, H, W] (0 is the background).

    Args:
        clients: for each name either `{"train": (x, y), "val": (x, y), "test": (x, y)}` or one
            `(x, y)`, which is split. "val" and "test" may be missing.
        name: of the federation.
        classes: names of the classes; "0", "1"… where none are given.
        pipeline: how batches are normalised and augmented; the default only scales.
        shares: of training, validation and test where a client is split.
        seed: what that split follows from.
        task: "classification" or "segmentation" (default: what the shape of the labels says).
        metric: what scores are (default: "accuracy", or "dice"; see `Federation`).
        source: how the data can be had again.

    >>> x, y = np.zeros((20, 8, 8), dtype=np.uint8), np.arange(20) % 2
    >>> fed = arrays({"a": (x, y), "b": {"train": (x, y), "test": (x[:4], y[:4])}})
    >>> [(len(c.train), len(c.val), len(c.test)) for c in fed.clients]
    [(12, 3, 5), (20, 0, 4)]
    """
    if not clients:
        raise BadData(f"federation '{name}' has no clients: give at least one")
    made = tuple(_client(client, given, shares, seed) for client, given in clients.items())
    labels = [int(s.y.max()) for c in made for s in (c.train, c.val, c.test) if len(s)]
    names = tuple(classes) if classes else tuple(map(str, range(max(labels, default=0) + 1)))
    pixels = made[0].train.y.ndim == 3
    return Federation(
        name,
        made,
        names,
        pipeline or Pipeline(),
        task=task or ("segmentation" if pixels else "classification"),
        metric=metric,
        source=source,
    )


def npz(path: str | Path, **options: Any) -> Federation:
    """A federation from one .npz file.

    The file holds `<client>/train/x`, `<client>/train/y`, and the same for `val` and `test` where
    they exist; a client with `train` alone (or with plain `<client>/x` and `<client>/y`) is split.
    `__` or `.` may stand for `/`. An optional array `classes` names the classes. Write one with

        np.savez("data.npz", **{"berlin/train/x": x, "berlin/train/y": y})

    Args:
        path: the file.
        options: as for `arrays`.
    """
    path = Path(path)
    options.setdefault("source", describe(path, **options))
    loaded = read_npz(path)
    if "classes" in loaded:
        options.setdefault("classes", [str(c) for c in loaded.pop("classes").tolist()])
    if not loaded:
        raise BadData(f"{path} holds no arrays: name them like 'berlin/train/x'")
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for entry, array in loaded.items():
        client, part, axis = _parse(entry, path)
        found.setdefault(client, {}).setdefault(part, {})[axis] = array
    clients = {client: _pairs(client, parts, path) for client, parts in found.items()}
    options.setdefault("name", path.stem)
    try:
        return arrays(clients, **options)
    except BadData as error:
        raise BadData(f"{path}: {error}") from None


def inputs(path: str | Path) -> Tensor:
    """The inputs [N, ...] that an .npz file holds under the name `x`, without labels.

    uint8 stays uint8 and counts 0 to 255, floats are taken as they are, images are turned to
    [N, C, H, W].
    """
    loaded = read_npz(Path(path))
    if "x" not in loaded:
        raise BadData(f"{path} holds no array 'x': write it with np.savez(path, x=images)")
    x = _inputs(_tensor(loaded["x"], f"inputs of {path}"), str(path))
    if x.ndim < 2 or len(x) == 0:
        raise BadData(
            f"'x' of {path} has shape {list(x.shape)}: give images [N, H, W] or [N, C, H, W], or "
            "vectors [N, D]"
        )
    return channels_first(x, str(path))


def read_npz(path: Path) -> dict[str, Any]:
    """The arrays of an .npz file by name; nothing is unpickled."""
    if not path.is_file():
        raise BadData(f"there is no file {path}: check the path")
    try:
        opened = np.load(path, allow_pickle=False)
        if isinstance(opened, np.ndarray):
            raise BadData(f"{path} holds one bare array: save named ones with np.savez")
        with opened as archive:
            return {entry: archive[entry] for entry in archive.files}
    except BadData:
        raise
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        if "Object arrays" in str(error):
            raise BadData(
                f"{path} holds Python objects, which are not loaded for safety: save plain arrays "
                "of numbers of one shape"
            ) from None
        reason = " ".join(str(error).split()) or type(error).__name__
        if "allow_pickle" in reason or "pickled" in reason:
            reason = "no known format"
        raise BadData(
            f"{path} cannot be read ({reason}): it is cut short or no .npz file; write it again "
            "with np.savez"
        ) from None


def _parse(entry: str, path: Path) -> tuple[str, str, str]:
    """Client, split ("" where none is named) and "x" or "y" of an array's name."""
    for separator in _SEPARATORS:
        pieces = entry.split(separator)
        if len(pieces) >= 3 and pieces[-1] in ("x", "y") and pieces[-2] in SPLITS:
            return separator.join(pieces[:-2]), pieces[-2], pieces[-1]
        if len(pieces) == 2 and pieces[0] and pieces[-1] in ("x", "y"):
            return pieces[0], "", pieces[1]
    raise BadData(
        f"{path} holds an array '{entry}': names are '<client>/<train|val|test>/<x|y>' or "
        "'<client>/<x|y>', and 'classes'"
    )


def _pairs(
    client: str, parts: Mapping[str, Mapping[str, Any]], path: Path
) -> Mapping[str, Pair] | Pair:
    for part, pair in parts.items():
        for axis in ("x", "y"):
            if axis not in pair:
                where = "/".join(filter(None, (client, part)))
                raise BadData(f"{path} has no '{where}/{axis}' beside its partner: add it")
    if "" in parts and len(parts) > 1:
        raise BadData(f"{path} gives client '{client}' both with and without splits: choose one")
    pairs = {part: (pair["x"], pair["y"]) for part, pair in parts.items()}
    alone = len(pairs) == 1 and set(pairs) <= {"", "train"}  # what is to test with stays that
    return next(iter(pairs.values())) if alone else pairs


def _client(
    name: str, given: Mapping[str, Pair] | Pair, shares: Sequence[float], seed: int
) -> Client:
    if not isinstance(given, Mapping):
        everything = samples(given, f"client '{name}'")
        return Client(name, *split(everything, shares, seed=keys.fold(seed, "client", name)))
    for part in given:
        if part not in SPLITS:
            raise UnknownName(f"split of client '{name}'", str(part), SPLITS)
    if "train" not in given:
        raise BadData(
            f"client '{name}' has {' and '.join(given) or 'nothing'} but no training data: add "
            "'train', or give one (x, y) to be split"
        )
    parts = {p: samples(pair, f"client '{name}' ({p})") for p, pair in given.items()}
    nothing = Samples(parts["train"].x[:0], parts["train"].y[:0])
    return Client(name, *(parts.get(p, nothing) for p in SPLITS))


def samples(pair: Pair, where: str) -> Samples:
    """Inputs and labels in the form of the package, or an error that names where they are from.

    >>> samples((np.zeros((2, 9, 9, 3), np.uint8), np.array([0, 1])), "here").x.shape
    torch.Size([2, 3, 9, 9])
    """
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise BadData(f"{where} is no pair: give (x, y)")
    x, y = (_tensor(part, f"{kind} of {where}") for part, kind in zip(pair, ("inputs", "labels")))
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if x.ndim < 2 or y.ndim == 0:
        raise BadData(
            f"{where} has inputs of shape {list(x.shape)} and labels of shape {list(y.shape)}: "
            "give images [N, H, W] or [N, C, H, W], or vectors [N, D], and one label each"
        )
    if len(x) != len(y):
        raise BadData(f"{where} has {len(x)} inputs but {len(y)} labels: they must pair up")
    return Samples(channels_first(_inputs(x, where), where), _labels(y, where))


def _tensor(values: Any, what: str) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach().cpu()
    try:
        array = np.asarray(values)
    except ValueError:
        raise BadData(f"the {what} are lists of different lengths: give one shape") from None
    if array.dtype.kind not in "buif":
        raise BadData(f"the {what} have type {array.dtype}: give numbers, all of one shape")
    if array.dtype.byteorder not in "=|" or array.dtype == np.longdouble:
        array = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    if array.dtype.kind == "u" and array.dtype != np.uint8:
        array = array.astype(np.int64)
    # A read-only array cannot be lent to torch, and lent memory could change under a run.
    return torch.from_numpy(np.array(array, order="C"))


def _inputs(x: Tensor, where: str) -> Tensor:
    if x.dtype == torch.uint8:
        return x
    if not x.is_floating_point():
        raise BadData(
            f"the inputs of {where} have type {x.dtype}: convert them to uint8 (0 to 255) or to "
            "float32"
        )
    if not finite(x):
        raise BadData(f"the inputs of {where} hold NaN or infinite values: clean or drop them")
    return x


def _labels(y: Tensor, where: str) -> Tensor:
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise BadData(
            f"the labels of {where} have type {y.dtype}: labels are whole numbers from 0; convert "
            "them with y.astype('int64') or y.long()"
        )
    if y.ndim == 1 or y.dtype != torch.uint8:  # labels of pixels are many
        y = y.to(torch.int64)
    check_labels(y, where)
    return y


def check_labels(y: Tensor, where: str) -> None:
    """Refuse labels that cannot be positions of classes."""
    low, high = (int(y.min()), int(y.max())) if y.numel() else (0, 0)
    if low < 0:
        raise BadData(f"the labels of {where} hold {low}: labels count from 0")
    if high >= _MOST_CLASSES:
        raise BadData(
            f"the labels of {where} hold {high}: labels count the classes from 0, and more than "
            f"{_MOST_CLASSES} are not supported; number the classes that there are"
        )


def channels_first(x: Tensor, where: str) -> Tensor:
    """Images as [N, C, H, W]; vectors [N, D] stay as they are."""
    if x.ndim == 2:
        return x
    if x.ndim == 3:
        return x[:, None]
    if x.ndim != 4:
        raise BadData(
            f"the inputs of {where} have shape {list(x.shape)}: give images [N, H, W] or "
            "[N, C, H, W], or vectors [N, D]"
        )
    if x.shape[3] in _AMBIGUOUS and x.shape[1] not in _AMBIGUOUS:
        return x.permute(0, 3, 1, 2).contiguous()
    return x
