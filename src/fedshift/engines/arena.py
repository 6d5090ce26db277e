"""Memory that processes share, for tensors that would be copied through a pipe otherwise.

An `Arena` is an anonymous file in memory (`memfd`): one process writes tensors into it one after
another and tells where they lie, others map the same file and look. It vanishes with the last
process that has it open.
"""

from __future__ import annotations

import bisect
import functools
import math
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_ALIGN = 64
Place = list[Any]  # [offset, dtype, shape], as JSON holds it


class Arena:
    """A growing file in memory.

    Args:
        handle: the file descriptor of an arena of another process (None: a new one).

    >>> a = Arena()
    >>> places = a.write([torch.arange(3)])
    >>> Arena(os.dup(a.handle)).read(places[0])
    tensor([0, 1, 2])
    """

    def __init__(self, handle: int | None = None) -> None:
        self.handle = os.memfd_create("fedshift") if handle is None else handle
        self._map: mmap.mmap | None = None

    def write(self, tensors: Iterable[Tensor]) -> list[Place]:
        """Lay tensors one after another from the start; what was there before is overwritten."""
        parts = [t.detach().cpu().contiguous() for t in tensors]
        places: list[Place] = []
        at = 0
        for t in parts:
            places.append([at, str(t.dtype).removeprefix("torch."), list(t.shape)])
            at += -(-max(1, t.nbytes) // _ALIGN) * _ALIGN
        self._grow(at)
        for t, place in zip(parts, places):
            if t.numel():
                self.read(place).copy_(t)
        return places

    def read(self, place: Place) -> Tensor:
        """The tensor at a place: a window on the shared memory, not a copy."""
        offset, name, shape = place
        dtype: torch.dtype = getattr(torch, name)
        count = math.prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        end = offset + count * dtype.itemsize
        if self._map is None or len(self._map) < end:
            self._map = mmap.mmap(self.handle, os.fstat(self.handle).st_size)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=offset).reshape(shape)

    def _grow(self, size: int) -> None:
        # older maps stay alive as long as a tensor looks through them
        if size > os.fstat(self.handle).st_size:
            os.ftruncate(self.handle, size)


File = tuple[str, int]  # a path, and the offset in it


def mapped_files(tensors: Sequence[Tensor]) -> list[File | None]:
    """The file and offset that each tensor is mapped from, where it is (Linux); else None."""
    spans = _spans()
    lows = [low for low, _, _ in spans]
    found: list[File | None] = []
    for t in tensors:
        begin, file = t.data_ptr(), None
        at = bisect.bisect_right(lows, begin) - 1
        if at >= 0 and t.is_contiguous():
            low, high, mapped = spans[at]
            if mapped is not None and begin + t.nbytes <= high:
                file = (mapped[0], mapped[1] + begin - low)
        found.append(file)
    return found


def _spans() -> list[tuple[int, int, File | None]]:
    """What this process has mapped, in order: from and to which address, and from which file."""
    maps = Path("/proc/self/maps")
    spans: list[tuple[int, int, File | None]] = []
    for line in maps.read_text().splitlines() if maps.exists() else ():
        span, _, offset, _, inode, *name = line.split(maxsplit=5)
        low, high = (int(x, 16) for x in span.split("-"))
        path = name[0] if name else ""
        real = inode != "0" and path.startswith("/") and not path.startswith("/memfd:")
        spans.append((low, high, (path, int(offset, 16)) if real else None))
    return spans


def from_file(path: str, offset: int, dtype: str, shape: list[int]) -> Tensor:
    """A tensor mapped from a file, of which pages are loaded when they are looked at."""
    kind: torch.dtype = getattr(torch, dtype)
    count = math.prod(shape)
    return torch.frombuffer(_mapped(path), dtype=kind, count=count, offset=offset).reshape(shape)


@functools.cache
def _mapped(path: str) -> mmap.mmap:
    """A file, mapped once: a system allows a process some ten thousands of maps."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
