"""How much each scalar parameter matters for what a model puts out, and means weighted by that.

The importance of a parameter is the mean, over data, of |d ||F(x)||^2 / d parameter| (Aljundi et
al., Memory Aware Synapses, ECCV 2018): a parameter whose change would not be felt has none. No
labels are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedshift.tree import Tree, map_tree, pick

if TYPE_CHECKING:
    from fedshift.method import Data
    from fedshift.net import Net

_TOGETHER = 32, 1 << 22  # small groups share a pass: at most so many samples and gradients
_TINY = 1e-12  # under a root, whose slope at 0 is infinite


def importances(
    net: Net,
    data: Data,
    names: tuple[str, ...],
    samples: Tensor,
    group: int = 32,
    norm: str = "squared",
    encoder: str = "logits",
) -> Tree:
    """The importance of every scalar of some parameters over a client's data, in eval mode.

    Args:
        net: the model; nothing of it moves.
        data: the samples, taken in order.
        names: the parameters.
        samples: how many samples there are.
        group: so many gradients are summed before the absolute value, so that opposite ones cancel;
            1 sums the absolute values themselves.
        norm: of the outputs, "squared" or "plain".
        encoder: what the parameters before the head are judged by, the "logits" or the "features".
    """
    params = pick(net.tensors, names)
    size = sum(p.numel() for p in params.values())
    groups = max(1, min(_TOGETHER[0] // group, _TOGETHER[1] // max(1, size)))

    def output(params: Tree, x: Tensor, mask: Tensor) -> Tensor:
        """What one group's samples put out, as one number."""
        own = net.at(params, grad=True)
        z = own.features(x)
        if encoder == "logits":
            felt = _size(own.head(z), norm)
        else:
            felt = _size(z, norm) + _size(own.head(z.detach()), norm)
        return torch.where(mask, felt, 0.0).sum()

    slope = torch.func.grad(output)

    def add(total: Tree, x: Tensor, y: Tensor, mask: Tensor) -> Tree:
        if groups == 1:
            grads = slope(params, x, mask)
            return {n: t.add_(grads[n].abs()) for n, t in total.items()}
        grads = torch.vmap(slope, in_dims=(None, 0, 0))(params, _cut(x, group), _cut(mask, group))
        return {n: t.add_(grads[n].abs().sum(dim=0)) for n, t in total.items()}

    total = data.fold(add, map_tree(torch.zeros_like, params), batch=group * groups)
    return {n: t / samples for n, t in total.items()}


def _cut(rows: Tensor, group: int) -> Tensor:
    """Rows [N, ...] as groups [G, group, ...], the last one filled up with zeros."""
    missing = -len(rows) % group
    whole = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
    return whole.reshape(-1, group, *rows.shape[1:])


def _size(out: Tensor, norm: str) -> Tensor:
    """The (squared) norm of each row."""
    square = out.flatten(1).square().sum(dim=1)
    return square if norm == "squared" else (square + _TINY).sqrt()


def shares(importance: Tensor, weights: Tensor) -> Tensor:
    """Each client's share in the importance of each scalar; where nobody's counts, its weight.

    Args:
        importance: [K, ...], not negative.
        weights: [K], which sum to 1.

    >>> omega = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    >>> shares(omega, torch.tensor([0.5, 0.5]))
    tensor([[0.2500, 0.5000],
            [0.7500, 0.5000]])
    """
    total = importance.sum(dim=0)
    alive = total > 0
    column = weights.to(importance.dtype).reshape(-1, *[1] * total.dim())
    return torch.where(alive, importance / torch.where(alive, total, 1.0), column)
