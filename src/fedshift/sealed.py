"""Uploads that a method's server part may not look at, since noise on means does not cover it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from fedshift.errors import BadRun
from fedshift.tree import Tree


class Looked(BadRun):
    """A method's server looks at what noise on means does not cover."""


class Sealed(Tensor):
    """Stands for an upload that nobody may look at; it has a shape, and holds nothing.

    Functions of torch refuse it. What goes round them (torch.vmap unwraps its arguments) finds a
    tensor without content ("meta"), of which nothing can be computed.
    """

    _OPEN = frozenset(
        f
        for f in (
            *(getattr(Tensor, n).__get__ for n in ("shape", "dtype", "ndim")),
            *(getattr(Tensor, n) for n in ("__len__", "dim", "size", "numel", "is_floating_point")),
        )
    )
    _DEVICE = Tensor.device.__get__  # type: ignore[attr-defined]
    home: torch.device

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == cls._DEVICE:
            return args[0].home
        if func in cls._OPEN:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        raise Looked(_LOOKED)


_LOOKED = (
    "the server's part of the method looks at what single clients uploaded, which noise on the "
    "mean does not cover: let clients add it (--dp-where local), or take another method"
)


def seal(tree: Tree) -> Tree:
    """The same names and shapes, and nothing to be seen."""
    return {n: _one(t) for n, t in tree.items()}


def _one(tensor: Tensor) -> Sealed:
    found = torch.empty_like(tensor, device="meta").as_subclass(Sealed)
    found.home = tensor.device
    return found


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Around code that may hold sealed tensors: what stumbles over them says so."""
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        if isinstance(error, Looked) or "meta" not in str(error).lower():
            raise
        raise Looked(_LOOKED) from error


def check_unseen(tensors: Iterable[Tensor]) -> None:
    """Refuse what was made of sealed tensors, which has no content either."""
    if any(t.is_meta for t in tensors):
        raise Looked(_LOOKED)
