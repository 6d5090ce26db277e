"""Whether the server needs more of the clients than a mean of their models, found by trying.

Its step of a round is repeated with models that differ more or less from client to client but have
the same mean, and with other numbers of samples. What makes a difference is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedshift.aggregate import Server
from fedshift.tree import Tree
from fedshift.trip import Result

_APART = 1e-3  # relative; what depends on the mean alone differs by rounding


@dataclasses.dataclass(frozen=True)
class Needs:
    """What the server looks at: more of the models than their plain mean, numbers of samples."""

    models: bool = False
    samples: bool = False


def tried(
    step: Callable[[Result, Mapping[str, int]], Server], result: Result, samples: Mapping[str, int]
) -> Needs:
    """What a server's step of (result, numbers of samples) needs; its means weigh clients alike."""
    others = {name: n + 5 * k for k, (name, n) in enumerate(samples.items())}
    if not result.model:
        return Needs(samples=_differ(step(result, samples), step(result, others)))
    near, far = (dataclasses.replace(result, model=spread(result.model, b)) for b in (0.1, 0.5))
    found = step(far, samples)
    return Needs(_differ(step(near, samples), found), _differ(found, step(far, others)))


def spread(model: Tree, by: float) -> Tree:
    """Stacked uploads with twice the mean that they have, unevenly around it.

    >>> spread({"w": torch.tensor([[1.0], [2.0], [3.0]])}, 0.6)["w"].flatten()
    tensor([3.0000, 3.6000, 5.4000])
    """

    def change(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return t
        size = torch.linspace(0, 1, len(t), dtype=t.dtype).square()  # no median at the mean
        size = 2 + 2 * by * (size - size.mean())
        return t.mean(0, keepdim=True) * size.reshape(-1, *[1] * (t.dim() - 1))

    return {name: change(t) for name, t in model.items()}


def _differ(a: Server, b: Server) -> bool:
    return any(_unlike(x, y) for x, y in zip(_held(a), _held(b), strict=True))


def _held(server: Server) -> list[Tensor]:
    """All that a server holds, in order."""
    found = list(server.model.values())
    for state in server.methods.values():
        found += state.tensors.values()
        found += (torch.tensor(float(n)) for n in state.numbers.values())
    return [t.double() for t in found]


def _unlike(x: Tensor, y: Tensor) -> bool:
    return x.shape != y.shape or not bool((x - y).norm() <= _APART * (x.norm() + 1e-6))
