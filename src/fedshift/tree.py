"""Operations on flat dictionaries of named tensors, which is what crosses every border here.

No nesting: names carry the structure ("model/conv1.weight").
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

Tree = dict[str, Tensor]


def map_tree(
    f: Callable[..., Tensor], first: Mapping[str, Tensor], *rest: Mapping[str, Tensor]
) -> Tree:
    """Apply a function name by name; the first tree says which names.

    >>> map_tree(torch.add, {"a": torch.ones(1)}, {"a": torch.ones(1)})
    {'a': tensor([2.])}
    """
    return {name: f(t, *(r[name] for r in rest)) for name, t in first.items()}


def stack(trees: Sequence[Mapping[str, Tensor]]) -> Tree:
    """Stack trees of equal names and shapes along a new first axis."""
    return {name: torch.stack([t[name] for t in trees]) for name in trees[0]}


def row(tree: Mapping[str, Tensor], k: int) -> Tree:
    """Entry k of a stacked tree."""
    return {name: t[k] for name, t in tree.items()}


def with_prefix(prefix: str, tree: Mapping[str, Tensor]) -> Tree:
    """Put every name under a prefix ("w" becomes "prefix/w")."""
    return {f"{prefix}/{name}": t for name, t in tree.items()}


def under(prefix: str, tree: Mapping[str, Tensor]) -> Tree:
    """What lies under a prefix, with the prefix taken off."""
    head = prefix + "/"
    return {name[len(head) :]: t for name, t in tree.items() if name.startswith(head)}


def pick(tree: Mapping[str, Tensor], names: Iterable[str]) -> Tree:
    """The entries of the given names."""
    return {name: tree[name] for name in names}


def square_norm(tree: Mapping[str, Tensor]) -> Tensor:
    """The sum of squares over all tensors."""
    return torch.stack([t.square().sum() for t in tree.values()]).sum()


def finite(tree: Mapping[str, Tensor]) -> bool:
    """Whether no tensor holds a NaN or an infinity.

    >>> finite({"a": torch.ones(2)}), finite({"a": torch.tensor([0.0, torch.nan])})
    (True, False)
    """
    found = [t for t in tree.values() if t.is_floating_point() and t.numel()]
    if not found or not found[0].is_cuda:  # where extremes are many times faster than the rest
        return all(math.isfinite(x) for t in found for x in torch.aminmax(t))
    largest = torch.stack([n.double() for n in torch._foreach_norm(found, math.inf)])
    return bool(torch.isfinite(largest).all())  # waits for the device once


def nbytes(tree: Mapping[str, Tensor]) -> int:
    """Bytes of all tensors together."""
    return sum(t.numel() * t.element_size() for t in tree.values())


def digest(tree: Mapping[str, Tensor]) -> str:
    """sha256 over names, types, shapes and bytes, in the order of names."""
    h = hashlib.sha256()
    for name in sorted(tree):
        t = tree[name].detach().cpu().contiguous()
        h.update(f"{name}\0{t.dtype}\0{tuple(t.shape)}\0".encode())
        h.update(t.reshape(-1).view(torch.uint8).numpy().tobytes())
    return h.hexdigest()
