"""Training many small networks at once, as a server does: one `vmap`, one optimizer, no loop.

The networks are of one kind, and tensor by tensor stacked along a first axis: row k of everything
is network k. A loss sees one of them; rows never touch, so that the sum of their losses gives every
row its own gradient.

A step of small networks takes longer to launch than to compute. So on a GPU it is recorded once per
call as a CUDA graph and replayed, and what steps draw at random may be drawn in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import keys
from fedshift.optim import Optimizer
from fedshift.tree import Tree, map_tree

Loss = Callable[[Tree, Tree, Tensor, Tensor], Tensor]
_WARM_UPS = 2  # steps before one is recorded, so that libraries have chosen what they use


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
    lr: float,
    buffers: Mapping[str, Tensor] | None = None,
    state: Mapping[str, Tensor] | None = None,
    rest: Mapping[str, Tensor] | None = None,
    draw: Callable[[Tensor], Tree] = lambda key: {},
) -> Fitted:
    """Take a number of optimizer steps on K networks together; what is given stays as it is.

    Args:
        loss: `loss(tensors, rest, key, step)` of one network: its parameters and buffers by name
            (as `torch.func.functional_call` takes them; buffers may move in place), its rows of
            `rest` and of what was drawn, its key of this step, and the number of the step. Both
            come as tensors, on which it must not branch. What is the same for all networks it may
            simply close over.
        params: what is trained, stacked [K, ...].
        steps: how many steps; 0 gives back what came.
        optimizer: its rule. A step count per row lives in its state.
        key: one key for each network [K]; each step folds its number in.
        lr: the learning rate.
        buffers: stacked tensors that a forward pass moves (running statistics).
        state: the optimizer's state to go on with (None: a fresh one).
        rest: stacked tensors that the loss looks at.
        draw: makes tensors [steps, K, ...] from the keys of all steps and networks [steps, K], for
            losses whose draws would cost more in every step than they do in one go.

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
    now = {n: p.detach().clone() for n, p in params.items()}
    moved = {n: b.detach().clone() for n, b in (buffers or {}).items()}
    memory = dict(optimizer.init(now, len(key)) if state is None else state)
    memory = {n: t.clone() for n, t in memory.items()}
    like = next(iter(now.values()))
    losses = like.new_zeros((steps, len(key)))
    number = torch.arange(steps, device=like.device)
    each = keys.fold_in(key.to(like.device), number[:, None])
    drawn = draw(each) if steps else {}
    at = number.new_zeros(1)

    def now_of(t: Tensor) -> Tensor:
        return t.index_select(0, at).squeeze(0)

    def step() -> None:
        """One step on tensors that stay where they are, so that a graph can replay it."""
        leaves = {n: p.detach().requires_grad_() for n, p in now.items()}
        moving = {n: b.detach() for n, b in moved.items()}

        beside = {**(rest or {}), **map_tree(now_of, drawn)}

        def one(own: Tree, moving: Tree, beside: Tree, key: Tensor) -> Tensor:
            return loss({**own, **moving}, beside, key, at[0])

        with torch.enable_grad():
            values = torch.vmap(one)(leaves, moving, beside, now_of(each))
            found = torch.autograd.grad(values.sum(), list(leaves.values()), allow_unused=True)
        grads = {
            n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(now.items(), found)
        }
        optimizer.update(now, grads, memory, lr)
        losses.index_copy_(0, at, values.detach()[None])
        at.add_(1)

    _repeat(step, steps, like.device)
    return Fitted(now, moved, memory, losses)


def _repeat(step: Callable[[], None], times: int, device: torch.device) -> None:
    """Run a step again and again; on a GPU all but the first few runs replay a recording."""
    if device.type != "cuda" or times <= _WARM_UPS:
        for _ in range(times):
            step()
        return
    with torch.cuda.device(device):
        main = torch.cuda.current_stream()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                step()
        main.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # recording empties torch's cache, and with it the memory of the last call's graph
        with torch.cuda.graph(graph, stream=side):
            step()
        for _ in range(times - _WARM_UPS):
            graph.replay()
        main.synchronize()  # before the graph goes
