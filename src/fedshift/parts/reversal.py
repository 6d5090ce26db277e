"""Gradient reversal: nothing on the way forward, the opposite sign on the way back.

What stands before the reversal is trained against what stands behind it (Ganin and Lempitsky, ICML
2015). It belongs behind the trained network, on a tensor that needs a gradient: put on an input, it
would turn the sign of nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Reversed(torch.autograd.Function):
    """In the form that `torch.func.grad` and `torch.vmap` take."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, strength: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (strength,) = ctx.saved_tensors
        return -strength * grad, None


def reverse(x: Tensor, strength: float | Tensor = 1.0) -> Tensor:
    """The tensor itself, whose gradient is multiplied by minus the strength.

    Args:
        x: what a network made.
        strength: a number, or a 0-d tensor where a schedule sets it.

    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> reverse(x, 0.5).square().sum().backward()
    >>> x.grad
    tensor([-1., -2.])
    """
    if not isinstance(strength, Tensor):
        strength = x.new_full((), strength)
    reversed_: Tensor = _Reversed.apply(x, strength.to(x.dtype))  # type: ignore[no-untyped-call]
    return reversed_
