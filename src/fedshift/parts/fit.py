"""Training many small networks at once, as a server does: one `vmap`, one optimizer, no loop.

The networks are of one kind, and tensor by tensor stacked along a first axis: row k of everything
is network k. A loss sees one of them; rows never touch, so that the sum of their losses gives every
row its own gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import keys
from fedshift.optim import Optimizer
from fedshift.tree import Tree

Loss = Callable[[Tree, Tree, Tensor, int], Tensor]


@dataclass(frozen=True)
class Fitted:
    """Stacked networks after training.

    Args:
        params, buffers: their tensors [K, ...].
        state: the optimizer's, to go on with in a later call.
        losses: the loss before each step [steps, K].
    """

    params: Tree
    buffers: Tree
    state: Tree
    losses: Tensor


def fit(
    loss: Loss,
    params: Mapping[str, Tensor],
    steps: int,
    optimizer: Optimizer,
    key: Tensor,
    *,
    lr: float | Callable[[int], float],
    buffers: Mapping[str, Tensor] | None = None,
    state: Mapping[str, Tensor] | None = None,
    rest: Mapping[str, Tensor] | None = None,
) -> Fitted:
    """Take a number of optimizer steps on K networks together; what is given stays as it is.

    Args:
        loss: `loss(tensors, rest, key, step)` of one network: its parameters and buffers by name
            (as `torch.func.functional_call` takes them; buffers may move in place), its rows of
            `rest`, its key of this step, and the number of the step, a plain int. What is the same
            for all networks it may simply close over.
        params: what is trained, stacked [K, ...].
        steps: how many steps; 0 gives back what came.
        optimizer: its rule. A step count per row lives in its state.
        key: one key for each network [K]; each step folds its number in.
        lr: the learning rate, or one for each step.
        buffers: stacked tensors that a forward pass moves (running statistics).
        state: the optimizer's state to go on with (None: a fresh one).
        rest: stacked tensors that the loss looks at.

    >>> def loss(tensors, rest, key, step):
    ...     return (tensors["w"] - rest["goal"]).square().sum()
    >>> goal = torch.tensor([[1.0], [-2.0]])
    >>> done = fit(loss, {"w": torch.zeros(2, 1)}, 50, Optimizer(), torch.arange(2), lr=0.1,
    ...            rest={"goal": goal})
    >>> done.params["w"]
    tensor([[ 1.0000],
            [-2.0000]])
    >>> done.losses.shape
    torch.Size([50, 2])
    """
    rows = len(key)
    now = {n: p.detach().clone() for n, p in params.items()}
    moved = {n: b.detach().clone() for n, b in (buffers or {}).items()}
    memory = dict(optimizer.init(now, rows) if state is None else state)
    memory = {n: t.clone() for n, t in memory.items()}
    beside = dict(rest or {})
    losses = next(iter(now.values())).new_zeros((steps, rows))
    for step in range(steps):

        def each(own: Tree, moving: Tree, beside: Tree, key: Tensor, step: int = step) -> Tensor:
            return loss({**own, **moving}, beside, key, step)

        leaves = {n: p.requires_grad_() for n, p in now.items()}
        with torch.enable_grad():
            values = torch.vmap(each)(leaves, moved, beside, keys.fold_in(key, step))
            found = torch.autograd.grad(values.sum(), list(leaves.values()), allow_unused=True)
        now = {n: p.detach() for n, p in leaves.items()}
        moved = {n: b.detach() for n, b in moved.items()}
        grads = {n: torch.zeros_like(now[n]) if g is None else g for n, g in zip(now, found)}
        optimizer.update(now, grads, memory, lr(step) if callable(lr) else lr)
        losses[step] = values.detach()
    return Fitted(now, moved, memory, losses)
