"""What stands for the uploads of a round of which only a sum is known.

The server's part of a round takes rows, one for each client. Of these rows it may take the weighted
mean that sites have summed, or the plain mean or sum where they weigh alike; whatever else looks at
them is refused, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedshift.errors import BadRun


class Hidden(BadRun):
    """Something looks at single uploads, which secure aggregation hides."""


HIDDEN = (
    "the server's part of the method looks at what single sites uploaded, which secure aggregation "
    "hides: take another method, or leave secure aggregation off"
)
_OPEN = frozenset(
    f
    for f in (
        *(getattr(Tensor, n).__get__ for n in ("shape", "dtype", "ndim")),
        *(
            getattr(Tensor, n)
            for n in ("__len__", "dim", "size", "numel", "element_size", "is_floating_point")
        ),
    )
)
_DEVICE = Tensor.device.__get__  # type: ignore[attr-defined]


class Summed(Tensor):
    """Rows [K, ...] that are not there, and their sum.

    What goes round torch's functions (torch.vmap unwraps its arguments) finds a tensor without
    content ("meta"), of which nothing can be computed.
    """

    total: Tensor
    weights: Tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == _DEVICE:
            return args[0].total.device
        if func in _OPEN:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        rule = _RULES.get(func)
        found = None if rule is None else rule(*args, **kwargs)
        if found is None:
            raise Hidden(HIDDEN)
        return found


def summed(total: Tensor, weights: Sequence[int], dtype: torch.dtype) -> Summed:
    """Rows of a type, of which the sum, weighted by whole numbers, is known.

    >>> rows = summed(torch.tensor([6.0, 8.0]), [1, 1], torch.float32)
    >>> rows.shape, rows.mean(dim=0), rows.sum(dim=0)
    (torch.Size([2, 2]), tensor([3., 4.]), tensor([6., 8.]))
    >>> torch.tensordot(torch.tensor([0.5, 0.5]), rows, dims=1)
    tensor([3., 4.])
    >>> rows[0]
    Traceback (most recent call last):
    ...
    fedshift.engines.flower.secagg.summed.Hidden: the server's part of the method looks at what \
single sites uploaded, which secure aggregation hides: take another method, or leave secure \
aggregation off
    """
    rows = torch.empty((len(weights), *total.shape), dtype=dtype, device="meta")
    found: Summed = rows.as_subclass(Summed)
    found.total = total
    found.weights = torch.tensor(weights, dtype=torch.float64)
    return found


def _alike(rows: Summed) -> bool:
    return bool((rows.weights == rows.weights[0]).all())


def _sum(rows: Summed, dim: Any = None, **more: Any) -> Tensor | None:
    if more or dim not in (0, (0,), [0]) or not _alike(rows):
        return None
    first = int(rows.weights[0])
    return (rows.total if first == 1 else rows.total / first).to(rows.dtype)


def _mean(rows: Summed, dim: Any = None, **more: Any) -> Tensor | None:
    if more or dim not in (0, (0,), [0]) or not _alike(rows) or not rows.is_floating_point():
        return None
    return (rows.total / rows.weights.sum().item()).to(rows.dtype)


def _tensordot(weights: Any, rows: Any, dims: Any = None, out: Any = None) -> Tensor | None:
    """The weighted mean, if it is that which sites have summed."""
    if dims != 1 or out is not None or not isinstance(rows, Summed) or weights.dim() != 1:
        return None
    own = rows.weights / rows.weights.sum()
    given = weights.detach().double().cpu()
    if len(given) != len(own) or not torch.allclose(given, own, rtol=1e-5, atol=0.0):
        return None
    return (rows.total / rows.weights.sum().item()).to(rows.dtype)


def _reshape(rows: Summed, *shape: int) -> Summed | None:
    """Rows of vectors."""
    if shape != (len(rows), -1):
        return None
    flat = summed(rows.total.reshape(-1), [1] * len(rows), rows.dtype)
    flat.weights = rows.weights
    return flat


def _extreme(choose: Callable[[Tensor], Tensor]) -> Callable[..., Tensor | None]:
    """By these a run sees whether uploads are finite; of a sum it sees it for all at once."""

    def of(rows: Summed, dim: Any = None, **more: Any) -> Tensor | None:
        if more or dim != 1 or rows.dim() != 2 or not rows.is_floating_point():
            return None
        return choose(rows.total).expand(len(rows))

    return of


def _empty_like(rows: Summed, device: Any = None) -> Tensor | None:
    return torch.empty(rows.shape, dtype=rows.dtype, device="meta") if device == "meta" else None


_RULES: dict[Any, Callable[..., Any]] = {
    torch.empty_like: _empty_like,
    Tensor.sum: _sum,
    Tensor.mean: _mean,
    Tensor.reshape: _reshape,
    Tensor.amin: _extreme(torch.amin),
    Tensor.amax: _extreme(torch.amax),
    torch.tensordot: _tensordot,
}
