"""Samples in memory, or, where they are too many, in a file that is mapped into memory.

A mapped tensor is used like any other; the system reads what is touched and forgets it when memory
runs short. Files of known content are kept for the next time, all others vanish with the process.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from fedshift.errors import BadData
from fedshift.federation import Samples

Array = np.ndarray[Any, Any]
_SHARE = 0.25  # of the free memory that one federation may take


def directory() -> Path:
    """Where mapped files lie: $FEDSHIFT_CACHE, or ~/.cache/fedshift."""
    chosen = os.environ.get("FEDSHIFT_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "fedshift"


def budget(memory: int | None) -> int:
    """Bytes that samples may take in memory: as told, or a quarter of what is free."""
    if memory is not None:
        return memory
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        free = int(text.partition("MemAvailable:")[2].split()[0]) * 1024
    except (OSError, ValueError, IndexError):  # not Linux: half of all memory stands for the free
        free = _physical() // 2
    return int(free * _SHARE)


def _physical() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return 8 << 30


def store(
    rows: Iterable[Array], shape: tuple[int, ...], kind: str, *, mapped: bool, digest: str = ""
) -> Tensor:
    """Gather rows into one tensor.

    Args:
        rows: as many arrays as the first axis is long; taken one by one, and not at all where a
            file with this digest is there already.
        shape: of the whole.
        kind: of the numbers, as numpy names it.
        mapped: whether the tensor lies in a file instead of in memory.
        digest: what the content follows from; a file with a digest is kept.

    >>> store([np.zeros(2), np.ones(2)], (2, 2), "float32", mapped=False).tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """
    if not mapped or not math.prod(shape):
        whole = np.empty(shape, kind)
        for position, row in enumerate(rows):
            whole[position] = row
        return torch.from_numpy(whole)
    place = directory()
    try:
        place.mkdir(parents=True, exist_ok=True)
        if digest:
            return _kept(place / f"{digest}.bin", rows, shape, kind)
        with tempfile.TemporaryFile(dir=place) as file:  # the mapping outlives the name
            return _map(_write(file, rows, kind), shape, kind)
    except OSError as error:
        raise BadData(
            f"cannot keep {math.prod(shape) * np.dtype(kind).itemsize >> 20} MiB of samples in "
            f"{place} ({error.strerror or error}): free some space, or set FEDSHIFT_CACHE to "
            "another folder"
        ) from None


def _kept(path: Path, rows: Iterable[Array], shape: tuple[int, ...], kind: str) -> Tensor:
    wanted = math.prod(shape) * np.dtype(kind).itemsize
    if not path.is_file() or path.stat().st_size != wanted:
        # Written under another name first: a run that is killed leaves no half file behind, and
        # two that start together do not write into each other's.
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                _write(file, rows, kind)
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    with path.open("rb") as file:
        return _map(file, shape, kind)


def _write(file: IO[bytes], rows: Iterable[Array], kind: str) -> IO[bytes]:
    for row in rows:
        file.write(np.ascontiguousarray(row, dtype=kind).tobytes())
    file.flush()
    return file


def _map(file: IO[bytes], shape: tuple[int, ...], kind: str) -> Tensor:
    # Copy on write: torch wants memory it may write to, and the file must stay as it is.
    return torch.from_numpy(np.memmap(file, dtype=kind, mode="c", shape=shape))


def take(samples: Samples, index: Tensor, *, mapped: bool) -> Samples:
    """The samples at some positions, in a mapped file of their own where they are mapped."""
    if not mapped:
        return samples.take(index)
    shape = (len(index), *samples.x.shape[1:])
    rows = (samples.x[i].numpy() for i in index.tolist())
    kind = str(samples.x.dtype).removeprefix("torch.")
    return Samples(store(rows, shape, kind, mapped=True), samples.y[index])
