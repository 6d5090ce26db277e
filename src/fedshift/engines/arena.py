"""Memory that processes share, for tensors that would be copied through a pipe otherwise.

An `Arena` is an anonymous file in memory (`memfd`): one process writes tensors into it one after
another and tells where they lie, others map the same file and look. It vanishes with the last
process that has it open.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
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
        count = 1
        for n in shape:
            count *= n
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


def mapped_file(tensor: Tensor) -> tuple[str, int] | None:
    """The file and offset that a tensor is mapped from, where it is (Linux); else None."""
    maps = Path("/proc/self/maps")
    if not maps.exists() or not tensor.is_contiguous():
        return None
    begin = tensor.data_ptr()
    end = begin + tensor.nbytes
    for line in maps.read_text().splitlines():
        span, _, offset, _, inode, *name = line.split(maxsplit=5)
        low, high = (int(x, 16) for x in span.split("-"))
        if low <= begin and end <= high:
            path = name[0] if name else ""
            if inode == "0" or not path.startswith("/") or path.startswith("/memfd:"):
                return None
            return path, int(offset, 16) + begin - low
    return None


def from_file(path: str, offset: int, dtype: str, shape: list[int]) -> Tensor:
    """A tensor mapped from a file, of which pages are loaded when they are looked at."""
    kind: torch.dtype = getattr(torch, dtype)
    count = 1
    for n in shape:
        count *= n
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        view = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    return torch.frombuffer(view, dtype=kind, count=count, offset=offset).reshape(shape)
