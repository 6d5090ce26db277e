"""SGD, Adam and AdamW as updates of named tensors, one client or a stack of clients at once.

torch.optim knows one step count for all rows of a tensor, keeps its state under numbers, and cannot
leave a row out. Here a leading client axis may have a step count and a mask per row, the learning
rate may be a 0-d tensor (a schedule then needs no second CUDA graph), and the state is a flat tree
that a checkpoint holds like any other. Updates are in place and never wait for the device; the
numbers are those of torch.optim.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from fedshift.errors import BadValue, UnknownName
from fedshift.tree import Tree

NAMES = ("sgd", "adam", "adamw")
Tensors = list[Tensor]


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """The rule of an optimizer; its state is a tree that the caller keeps.

    Args:
        name: "sgd", "adam" or "adamw".
        momentum, nesterov: of sgd.
        weight_decay: added to the gradient (sgd, adam) or taken off the weights (adamw).
        eps, betas: of adam and adamw.

    >>> params, grads = {"w": torch.ones(2)}, {"w": torch.ones(2)}
    >>> sgd = Optimizer("sgd", momentum=0.9)
    >>> state = sgd.init(params)
    >>> for _ in range(2):
    ...     sgd.update(params, grads, state, lr=0.1)
    >>> params, state
    ({'w': tensor([0.7100, 0.7100])}, {'momentum/w': tensor([1.9000, 1.9000])})
    """

    name: str = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    eps: float = 1e-8
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise UnknownName("optimizer", self.name, NAMES)
        for field in ("momentum", "weight_decay", "eps"):
            if not getattr(self, field) >= 0:
                raise BadValue(f"optimizer {field} is {getattr(self, field)}: give 0 or more")
        if not all(0 <= b < 1 for b in self.betas):
            raise BadValue(f"optimizer betas are {self.betas}: give two numbers from 0 to below 1")
        if self.nesterov and self.momentum == 0:
            raise BadValue("optimizer nesterov needs momentum: set momentum above 0")

    def init(self, params: Mapping[str, Tensor], rows: int | None = None) -> Tree:
        """The state before the first step: "momentum/NAME", or "first/NAME", "second/NAME", "step".

        With `rows`, every tensor has a leading axis of that many clients, and so has "step".

        >>> sorted(Optimizer("adam").init({"w": torch.ones(3, 2)}, rows=3))
        ['first/w', 'second/w', 'step']
        """
        state = {
            f"{slot}/{name}": torch.zeros_like(t, requires_grad=False)
            for slot in self._slots()
            for name, t in params.items()
        }
        if self.name != "sgd":
            device = next(iter(params.values())).device if params else None
            shape = () if rows is None else (rows,)
            # float64: in float32 the bias correction would lose half its digits.
            state["step"] = torch.zeros(shape, dtype=torch.float64, device=device)
        return state

    @torch.no_grad()
    def update(
        self,
        params: Mapping[str, Tensor],
        grads: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        lr: float | Tensor,
        active: Tensor | None = None,
    ) -> None:
        """One step, in place on `params` and `state`; the gradients are left as they are.

        Args:
            params: the tensors to move; those without a gradient stay.
            grads: the gradients by name.
            state: what `init` made.
            lr: the learning rate, a number or a 0-d tensor on the device of the parameters.
            active: [K] booleans for a stack of K clients; a row that is not active keeps its
                parameters and its state, whatever its gradient holds.
        """
        names = list(grads)
        if not names:
            return
        p, g = [params[n] for n in names], [grads[n] for n in names]
        slots = [[state[f"{s}/{n}"] for n in names] for s in self._slots()]
        if self.weight_decay and self.name != "adamw":
            g = list(torch._foreach_add(g, p, alpha=self.weight_decay))
        if self.name == "sgd":
            g = self._velocity(g, slots, active)
            if active is None:
                _descend(p, g, lr)
                return
            delta = list(torch._foreach_mul(g, -lr))
        else:
            delta = self._adam(g, slots, state["step"], lr, active)
        if self.weight_decay and self.name == "adamw":
            torch._foreach_sub_(delta, torch._foreach_mul(p, lr * self.weight_decay))
        _add(p, delta, active)

    def _slots(self) -> tuple[str, ...]:
        if self.name == "sgd":
            return ("momentum",) if self.momentum else ()
        return ("first", "second")

    def _velocity(self, g: Tensors, slots: list[Tensors], active: Tensor | None) -> Tensors:
        """The direction of SGD: the gradient, or its momentum."""
        if not slots:
            return g
        velocity = slots[0]
        _decay(velocity, self.momentum, g, 1.0, active)
        if not self.nesterov:
            return velocity
        return list(torch._foreach_add(g, velocity, alpha=self.momentum))

    def _adam(
        self,
        g: Tensors,
        slots: list[Tensors],
        step: Tensor,
        lr: float | Tensor,
        active: Tensor | None,
    ) -> Tensors:
        """What Adam adds to the parameters, before AdamW's decay."""
        (first, second), (beta1, beta2) = slots, self.betas
        step += 1 if active is None else active.to(step.dtype)
        _decay(first, beta1, g, 1 - beta1, active)
        _decay(second, beta2, list(torch._foreach_mul(g, g)), 1 - beta2, active)
        # A row that has not stepped yet has nothing to correct; its result is thrown away.
        count = step.clamp_min(1)
        below = list(torch._foreach_sqrt(second))
        _scale(below, (1 - beta2**count).rsqrt())
        torch._foreach_add_(below, self.eps)
        delta = list(torch._foreach_div(first, below))
        _scale(delta, -lr / (1 - beta1**count))
        return delta


def clip_(grads: Mapping[str, Tensor], limit: float, rows: int | None = None) -> Tensor:
    """Scale gradients in place so that their norm over all tensors is at most a limit.

    With `rows`, each entry of the leading axis is a client, clipped by itself. The formula is that
    of `torch.nn.utils.clip_grad_norm_`: limit / (norm + 1e-6), at most 1.

    Returns:
        the norms before clipping: 0-d, or [rows].

    >>> grads = {"w": torch.tensor([[3.0, 4.0], [0.3, 0.4]])}
    >>> clip_(grads, 1.0, rows=2)
    tensor([5.0000, 0.5000])
    >>> grads["w"]
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    tensors = list(grads.values())
    if not tensors:
        return torch.zeros(() if rows is None else (rows,))
    with torch.no_grad():
        if rows is None:
            norms = list(torch._foreach_norm(tensors))
        else:
            norms = [torch.linalg.vector_norm(t.reshape(rows, -1), dim=1) for t in tensors]
        wide = max((n.dtype for n in norms), key=lambda dtype: torch.finfo(dtype).bits)
        total: Tensor = torch.linalg.vector_norm(torch.stack([n.to(wide) for n in norms]), dim=0)
        _scale(tensors, (limit / (total + 1e-6)).clamp_max(1.0))
    return total


def _decay(
    state: Tensors, keep: float, change: Tensors, weight: float, active: Tensor | None
) -> None:
    """state = keep * state + weight * change, in place, on the active rows."""
    if active is None:
        torch._foreach_mul_(state, keep)
        torch._foreach_add_(state, change, alpha=weight)
        return
    new = list(torch._foreach_mul(state, keep))
    torch._foreach_add_(new, change, alpha=weight)
    _put(state, new, active)


def _descend(params: Tensors, g: Tensors, lr: float | Tensor) -> None:
    """params -= lr * g, in place and in one pass; a rate on the device stays there."""
    if not isinstance(lr, Tensor):
        torch._foreach_add_(params, g, alpha=-lr)
    elif lr.is_cuda and all(p.dtype == torch.float32 and p.is_contiguous() for p in params):
        # the kernel of torch.optim.SGD(fused=True), which takes the rate in float32 alone: a
        # product with a 0-d tensor is several times slower on a GPU
        torch._fused_sgd_(
            params,
            [d if d.stride() == p.stride() else d.contiguous() for p, d in zip(params, g)],
            [],
            weight_decay=0.0,
            momentum=0.0,
            lr=lr.to(torch.float32),
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
    else:
        for p, d in zip(params, g, strict=True):
            p.addcmul_(d, lr.to(p.dtype), value=-1.0)


def _add(params: Tensors, delta: Tensors, active: Tensor | None) -> None:
    """params += delta, in place, on the active rows."""
    if active is None:
        torch._foreach_add_(params, delta)
    else:
        _put(params, list(torch._foreach_add(params, delta)), active)


def _put(old: Tensors, new: Tensors, active: Tensor) -> None:
    """Overwrite the active rows; by `where`, since a product with 0 would keep NaN and infinity."""
    for o, n in zip(old, new, strict=True):
        torch.where(_column(active, o), n, o, out=o)


def _scale(tensors: Tensors, factor: Tensor) -> None:
    """tensors *= factor, in place; a factor per row is spread over the row."""
    if factor.dim() == 0:
        torch._foreach_mul_(tensors, factor)
        return
    cast = {t.dtype: factor.to(t.dtype) for t in tensors}
    torch._foreach_mul_(tensors, [_column(cast[t.dtype], t) for t in tensors])


def _column(per_row: Tensor, like: Tensor) -> Tensor:
    return per_row.reshape(-1, *[1] * (like.dim() - 1))
