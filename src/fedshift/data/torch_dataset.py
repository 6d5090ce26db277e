"""Map-style torch datasets as a federation: one per client, or one per client and split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedshift import keys
from fedshift.data import cache, images
from fedshift.data.augment import Pipeline
from fedshift.data.in_memory import arrays, channels_first, check_labels, samples
from fedshift.data.partition import SHARES, SPLITS, check_shares, split_index
from fedshift.errors import BadData, UnknownName
from fedshift.federation import Federation, Samples

Array = np.ndarray[Any, Any]


def dataset(
    clients: Mapping[str, Any],
    size: int | Sequence[int] | None = None,
    *,
    name: str = "dataset",
    classes: Sequence[str] | None = None,
    pipeline: Pipeline | None = None,
    shares: Sequence[float] = SHARES,
    seed: int = 0,
    task: str = "",
    metric: str = "",
    memory: int | None = None,
) -> Federation:
    """A federation from datasets with a length whose items are pairs (x, y).

    Every item is read once: a random transform inside a dataset is frozen by that, so put
    augmentation into the pipeline. PIL images become uint8; so do floats that are exactly what
    `ToTensor` makes of uint8.

    Args:
        clients: for each name a dataset (which is split), or `{"train": dataset, "val": …,
            "test": …}`, of which "val" and "test" may be missing.
        size: a side in pixels, or (height, width), to which PIL images are stretched; may be left
            out where all have one size.
        name, classes, pipeline, task, metric: as for `arrays`.
        shares: of training, validation and test where a client is split.
        seed: what that split follows from.
        memory: bytes that the inputs may take in memory (default: a quarter of what is free); above
            it they are kept in files that vanish with the process.

    >>> x, y = torch.zeros(20, 1, 8, 8), torch.arange(20) % 2
    >>> fed = dataset({"a": torch.utils.data.TensorDataset(x, y)})
    >>> fed["a"].train.x.dtype, len(fed["a"].train)
    (torch.uint8, 12)
    """
    check_shares(shares)
    target = images.as_size(size)
    sources = {client: _by_split(client, given) for client, given in clients.items()}
    weights = [
        _Rows(dataset, client, target).nbytes
        for client, splits in sources.items()
        for dataset in splits.values()
        if len(dataset)
    ]
    mapped = sum(weights) > cache.budget(memory)
    given = {}
    for client, splits in sources.items():
        parts = {s: _materialise(d, client, target, mapped) for s, d in splits.items() if len(d)}
        if "" in parts:
            parts = _cut(parts[""], shares, keys.fold(seed, "client", client), mapped)
        given[client] = {split: (s.x, s.y) for split, s in parts.items()}
    return arrays(given, name=name, classes=classes, pipeline=pipeline, task=task, metric=metric)


def _by_split(client: str, given: Any) -> dict[str, Any]:
    """Datasets by split, "" where the whole is to be split."""
    splits = dict(given) if isinstance(given, Mapping) else {"": given}
    for split, source in splits.items():
        if split and split not in SPLITS:
            raise UnknownName(f"split of client '{client}'", str(split), SPLITS)
        if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
            raise BadData(
                f"client '{client}' gives a {type(source).__name__}: give a dataset with a length "
                "and items (iterable ones must be gathered first)"
            )
    if not any(map(len, splits.values())):
        raise BadData(f"client '{client}' has no samples: leave it out")
    return splits


class _Rows:
    """The items of a dataset as arrays of one shape and type; the labels gather as they pass."""

    def __init__(self, source: Any, client: str, size: images.Size | None) -> None:
        self.source, self.client, self.size = source, client, size
        self.labels: list[Tensor] = []
        x, _ = self._pair(0)
        self.grey = isinstance(x, Image.Image) and x.mode in ("1", "L", "LA")
        first = self._array(x, 0)
        self.shape, self.kind = first.shape, str(first.dtype)
        self.nbytes = len(source) * first.nbytes

    def __iter__(self) -> Iterator[Array]:
        for position in range(len(self.source)):
            x, y = self._pair(position)
            row = self._array(x, position)
            if row.shape != self.shape or str(row.dtype) != self.kind:
                raise BadData(
                    f"{self._where(position)} has shape {list(row.shape)} and type {row.dtype}, "
                    f"but item 0 has {list(self.shape)} and {self.kind}: make them alike, or give "
                    "`size` for PIL images"
                )
            self.labels.append(self._label(y, position))
            yield row

    def _pair(self, position: int) -> tuple[Any, Any]:
        item = self.source[position]
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise BadData(
                f"{self._where(position)} is a {type(item).__name__}: items must be pairs (x, y)"
            )
        return item[0], item[1]

    def _array(self, x: Any, position: int) -> Array:
        if isinstance(x, Image.Image):
            images.check_depth(x, self._where(position))
            return images.pixels(x, self.size, self.grey)
        array = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
        if array.dtype != np.uint8 and array.dtype.kind != "f":
            raise BadData(
                f"{self._where(position)} has inputs of type {array.dtype}: give PIL images, uint8 "
                "or floating point"
            )
        batch = torch.from_numpy(np.array(array))[None]
        row: Array = channels_first(batch, self._where(position))[0].numpy()
        return row

    def _label(self, y: Any, position: int) -> Tensor:
        label = torch.as_tensor(np.asarray(y) if isinstance(y, Image.Image) else y)
        if label.is_floating_point() or label.dtype == torch.bool:
            raise BadData(
                f"{self._where(position)} has a label of type {label.dtype}: labels are whole "
                "numbers from 0"
            )
        return label.to(torch.int64)

    def _where(self, position: int) -> str:
        return f"item {position} of client '{self.client}'"


def _materialise(source: Any, client: str, size: images.Size | None, mapped: bool) -> Samples:
    rows = _Rows(source, client, size)
    x = cache.store(rows, (len(source), *rows.shape), rows.kind, mapped=mapped)
    y = torch.stack(rows.labels)
    check_labels(y, f"client '{client}'")
    if mapped:  # a mapped file is left as it was written
        return Samples(x, y)
    made = samples((x, y), f"client '{client}'")
    return Samples(_as_bytes(made.x), made.y)


def _as_bytes(x: Tensor) -> Tensor:
    """Floats as uint8 where nothing is lost: where dividing by 255 gives them back."""
    if x.dtype == torch.uint8 or float(x.min()) < 0 or float(x.max()) > 1:
        return x
    whole = torch.round(x * 255).to(torch.uint8)
    return whole if torch.equal(whole.to(x.dtype) / 255, x) else x


def _cut(whole: Samples, shares: Sequence[float], seed: int, mapped: bool) -> dict[str, Samples]:
    y = whole.y if whole.y.ndim == 1 else None
    index = split_index(len(whole), y, shares, seed=seed)
    parts = {s: cache.take(whole, i, mapped=mapped) for s, i in zip(SPLITS, index)}
    return {split: part for split, part in parts.items() if len(part)}
