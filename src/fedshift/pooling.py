"""Max pooling on a CPU in a form that is fast, with the same numbers to the last bit.

torch's kernel compares number by number where maps lie plane after plane, and a vector of channels
at a time where channels lie side by side: for maps of many channels it is several times faster to
turn them, pool, and turn the few maxima back. Which number of a window wins, also among equal ones,
does not depend on how maps lie.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_CHANNELS, _NUMBERS = 16, 1 << 16  # with fewer, turning costs more than it saves
_aten = torch.ops.aten


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, how: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        turned = x.contiguous(memory_format=torch.channels_last)
        y, winners = _aten.max_pool2d_with_indices(turned, *how)
        return y.contiguous(), winners.contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.how = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> Any:  # type: ignore[override]
        x, winners = ctx.saved_tensors
        return _aten.max_pool2d_with_indices_backward(g.contiguous(), x, *ctx.how, winners), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, how: tuple[Any, ...]) -> Any:
        """Maps of all clients are maps: they are pooled one by one."""
        x = x.movedim(in_dims[0], 0)
        y, winners = _MaxPool.apply(x.flatten(0, 1), how)  # type: ignore[no-untyped-call]
        return (y.unflatten(0, x.shape[:2]), winners.unflatten(0, x.shape[:2])), (0, 0)


class MaxPool2d(nn.MaxPool2d):
    """`nn.MaxPool2d` with the fast form where it pays.

    >>> x = torch.randn(8, 32, 24, 24)
    >>> torch.equal(MaxPool2d(2)(x), nn.MaxPool2d(2)(x))
    True
    """

    def forward(self, x: Tensor) -> Tensor:
        """The maxima of x [N, C, H, W]."""
        if not self._pays(x):
            y: Tensor = super().forward(x)
            return y
        how = (self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
        maxima: Tensor = _MaxPool.apply(x, tuple(map(_pair, how)))[0]  # type: ignore[no-untyped-call]
        return maxima

    def _pays(self, x: Tensor) -> bool:
        return (
            x.dim() == 4
            and x.device.type == "cpu"
            and x.shape[1] >= _CHANNELS
            and x.numel() >= _NUMBERS
            and not torch._C._functorch.is_batchedtensor(x)
            and x.is_contiguous()
            and not self.return_indices
        )


def _pair(value: Any) -> Any:
    return [value, value] if type(value) is int else value


def quicken(model: nn.Module) -> None:
    """Let the max pooling of a model take its fast form.

    >>> model = nn.Sequential(nn.MaxPool2d(2))
    >>> quicken(model)
    >>> type(model[0])
    <class 'fedshift.pooling.MaxPool2d'>
    """
    for module in model.modules():
        if type(module) is nn.MaxPool2d:
            module.__class__ = MaxPool2d
