"""Layers of stacked clients in forms that are fast, in place of the rules of `torch.vmap`.

vmap makes the convolutions of K clients one grouped convolution, for which the libraries have no
fast code on a GPU, and copies maps from one order of axes to another between a layer and the next.
Inside `fast()`, a convolution of many clients is there an unfolding and one batched product, a
linear layer leaves the gradient of its weights as the optimizer wants it, and batch norm and
pooling take maps in whatever order they lie. The functions are the same; in float64 they agree with
vmap's to rounding. What is not known here keeps vmap's rule.

x is [K, B, C, H, W] by its axes; how it lies in memory is another matter: [K, C, B, H, W] behind an
unfolded convolution, [B, K, C, H, W] behind a grouped one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight
from torch.overrides import TorchFunctionMode

from fedshift import kernels

Dim = int | None
Pair = int | tuple[int, int]

# Gradients of so few samples and so many weights are faster by kernels of ours (benchmarks/speed).
_FEW, _MANY = 16, 64


class Fast(TorchFunctionMode):
    """The mode that `fast` makes."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        handler = _HANDLERS.get(func)
        return func(*args, **(kwargs or {})) if handler is None else handler(*args, **kwargs or {})


def fast() -> Fast:
    """A context inside a function mapped by `torch.vmap` in which layers take their fast form.

    >>> x, w = torch.randn(3, 2, 4, 6, 6).double(), torch.randn(3, 5, 4, 3, 3).double()
    >>> def layer(x, w):
    ...     with fast():
    ...         return F.conv2d(x, w)
    >>> torch.allclose(torch.vmap(layer)(x, w), torch.vmap(F.conv2d)(x, w))
    True
    """
    return Fast()


# ---------------------------------------------------------------------------- convolutions


def convolution(
    x: Tensor, w: Tensor, b: Tensor | None, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """Convolutions of K clients: x [K, B, C, H, W] with w [K, O, C, h, w] and b [K, O]."""
    form = _form(x, w, kernels.outputs(x.shape[3:], _pair(w.shape[3:]), stride, padding))
    return form(x, w, b, stride, padding)


def _form(x: Tensor, w: Tensor, size: tuple[int, int]) -> Callable[..., Tensor]:
    """The fastest form on a GPU; on a CPU the one that adds up as a single client's does."""
    if not x.is_cuda:
        return grouped
    # fewer weights than places for them: with whole clients, the gradient of the weights would be
    # few products with long sums, which leave most of a GPU idle
    return singly if w[0, 0].numel() <= size[0] * size[1] else unfolded


def grouped(
    x: Tensor, w: Tensor, b: Tensor | None, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """As one convolution with a group of channels for each client."""
    clients, batch = x.shape[:2]
    maps = x.transpose(0, 1).reshape(batch, -1, *x.shape[3:])
    bias = None if b is None else b.flatten()
    y = F.conv2d(maps, w.flatten(0, 1), bias, stride, padding, 1, clients)
    return y.reshape(batch, clients, -1, *y.shape[2:]).transpose(0, 1)


def unfolded(
    x: Tensor, w: Tensor, b: Tensor | None, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """As one batched product of the weights with every patch of the maps."""
    clients, outputs, _, *kernel = w.shape
    size = kernels.outputs(x.shape[3:], _pair(kernel), stride, padding)
    columns = patches(x, _pair(kernel), stride, padding)
    weights = w.reshape(clients, outputs, -1)
    if b is None:
        y = torch.bmm(weights, columns)
    else:
        y = torch.baddbmm(b[..., None], weights, columns)
    return y.reshape(clients, outputs, x.shape[1], *size).transpose(1, 2)


def singly(
    x: Tensor, w: Tensor, b: Tensor | None, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """As a product for each image, with the weights repeated: few weights, many positions.

    The gradient of the weights is then many short sums at once and not a few long ones. The bias is
    one more weight, of a one in every patch.
    """
    (clients, batch), outputs = x.shape[:2], w.shape[1]
    size = kernels.outputs(x.shape[3:], _pair(w.shape[3:]), stride, padding)
    columns = patches(x.flatten(0, 1)[:, None], _pair(w.shape[3:]), stride, padding, b is not None)
    weights = w.reshape(clients, outputs, -1)
    if b is not None:
        weights = torch.cat([weights, b[..., None]], dim=2)
    each = weights[:, None].expand(-1, batch, -1, -1).flatten(0, 1)
    return torch.bmm(each, columns).reshape(clients, batch, outputs, *size)


def patches(
    x: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    ones: bool = False,
) -> Tensor:
    """Every patch of the maps that a kernel covers, as columns [K, C h w, B rows columns].

    With `ones`, a last row of ones for each client.
    """
    if (kernel != (1, 1) or ones) and kernels.available(x):
        columns: Tensor = _Patches.apply(x, kernel, stride, padding, ones)  # type: ignore[no-untyped-call]
        return columns
    if any(padding):
        x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    found = x.unfold(3, kernel[0], stride[0]).unfold(4, kernel[1], stride[1])
    found = found.permute(0, 2, 5, 6, 1, 3, 4)  # [K, C, h, w, B, rows, columns]
    found = found.reshape(len(x), found[0, :, :, :, 0, 0, 0].numel(), -1)
    return torch.cat([found, torch.ones_like(found[:, :1])], dim=1) if ones else found


class _Patches(torch.autograd.Function):
    """`patches` by the kernels for GPUs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *how: Any) -> Tensor:  # type: ignore[override]
        ctx.shape, ctx.how = x.shape, how[:3]
        return kernels.patches(x, *how)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        return kernels.summed(g.contiguous(), ctx.shape, *ctx.how), None, None, None, None


class _Convolution(torch.autograd.Function):
    """conv2d with a rule of its own for a stack of clients."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor | None, stride: Any, padding: Any) -> Tensor:
        return F.conv2d(x, w, b, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, w, b, *ctx.how = inputs
        ctx.save_for_backward(x, w)
        ctx.biased = b is not None

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        x, w = ctx.saved_tensors
        need_x, need_w, *_ = ctx.needs_input_grad
        return (
            conv2d_input(x.shape, w, g, *ctx.how) if need_x else None,  # type: ignore[no-untyped-call]
            conv2d_weight(x, w.shape, g, *ctx.how) if need_w else None,  # type: ignore[no-untyped-call]
            g.sum((0, 2, 3)) if ctx.biased else None,
            None,
            None,
        )

    @staticmethod
    def vmap(
        info: Any,
        dims: tuple[Dim, ...],
        x: Tensor,
        w: Tensor,
        b: Tensor | None,
        stride: Any,
        padding: Any,
    ) -> tuple[Tensor, int]:
        clients = info.batch_size
        if dims[1] is None and (b is None or dims[2] is None):  # one set of weights for all
            maps = _front(x, dims[0], clients)
            y = F.conv2d(maps.flatten(0, 1), w, b, stride, padding)
            return y.reshape(clients, -1, *y.shape[1:]), 0
        x, w = _front(x, dims[0], clients), _front(w, dims[1], clients)
        b = None if b is None else _front(b, dims[2], clients)
        return convolution(x, w, b, stride, padding), 0


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Tensor:
    plain = groups == 1 and _pair(dilation) == (1, 1) and not isinstance(padding, str)
    if not plain or input.dim() != 4:
        return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
    assert not isinstance(padding, str)
    how = (_pair(stride), _pair(padding))
    y: Tensor = _Convolution.apply(input, weight, bias, *how)  # type: ignore[no-untyped-call]
    return y


# ---------------------------------------------------------------------------- linear layers


class _Linear(torch.autograd.Function):
    """linear with a rule of its own for a stack of clients."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return F.linear(x, w, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, w, b = inputs
        ctx.save_for_backward(x, w)
        ctx.biased = b is not None

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        x, w = ctx.saved_tensors
        rows = g.flatten(0, -2)
        need_x, need_w, _ = ctx.needs_input_grad
        return (
            g @ w if need_x else None,
            rows.T @ x.flatten(0, -2) if need_w else None,
            rows.sum(0) if ctx.biased else None,
        )

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Dim, ...], x: Tensor, w: Tensor, b: Tensor | None
    ) -> tuple[Tensor, int]:
        clients = info.batch_size
        x = _front(x, dims[0], clients)
        if dims[1] is None and (b is None or dims[2] is None):
            return F.linear(x, w, b), 0
        w, rows = _front(w, dims[1], clients), x.flatten(1, -2)
        if _few(rows, w):
            y = _Few.apply(rows.contiguous(), w.contiguous())  # type: ignore[no-untyped-call]
            y = y if b is None else y + _front(b, dims[2], clients)[:, None]
            return y.reshape(*x.shape[:-1], -1), 0
        # As weights times samples, so that the gradient of the weights lies in memory as they do.
        rows = rows.transpose(1, 2)
        if b is None:
            y = torch.bmm(w, rows)
        else:
            y = torch.baddbmm(_front(b, dims[2], clients)[..., None], w, rows)
        return y.transpose(1, 2).reshape(*x.shape[:-1], -1), 0


def _few(rows: Tensor, w: Tensor) -> bool:
    """Whether the kernels for few samples and many weights take a linear layer."""
    small = rows.shape[1] <= _FEW and min(w.shape[1:]) >= _MANY
    plain = rows.dtype == w.dtype == torch.float32 and not torch.is_autocast_enabled("cuda")
    return small and plain and kernels.available(rows) and kernels.available(w)


class _Few(torch.autograd.Function):
    """A linear layer of few samples and many weights, its gradients by the kernels for GPUs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, w)
        return torch.bmm(w, x.transpose(1, 2)).transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        x, w = ctx.saved_tensors
        need_x, need_w = ctx.needs_input_grad
        g = g.contiguous()
        return (
            kernels.linear_inputs(g, w) if need_x else None,
            kernels.linear_weights(g, x) if need_w else None,
        )


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if input.dim() < 2:
        return F.linear(input, weight, bias)
    y: Tensor = _Linear.apply(input, weight, bias)  # type: ignore[no-untyped-call]
    return y


# ---------------------------------------------------------------------------- pooling


class _MaxPool(torch.autograd.Function):
    """max_pool2d, which looks at single maps, in whatever order they lie."""

    @staticmethod
    def forward(x: Tensor, how: tuple[Any, ...]) -> Tensor:
        y: Tensor = F.max_pool2d(x, *how)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.how = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        pull = torch.func.vjp(lambda x: F.max_pool2d(x, *ctx.how), x)[1]
        return pull(g)[0], None

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Dim, ...], x: Tensor, how: tuple[Any, ...]
    ) -> tuple[Tensor, int]:
        x = _front(x, dims[0], info.batch_size)
        order = sorted(range(3), key=x.stride, reverse=True)
        maps = x.permute(*order, 3, 4)
        y = _pooled(maps.flatten(1, 2), how)
        back = [order.index(d) for d in range(3)]
        return y.reshape(*maps.shape[:3], *y.shape[2:]).permute(*back, 3, 4), 0


def _pooled(maps: Tensor, how: tuple[Any, ...]) -> Tensor:
    """Max pooling of maps [N, C, H, W]."""
    kernel, stride, padding, dilation, ceil = how
    pairs = (_pair(kernel), _pair(stride), _pair(padding))
    known = _pair(dilation) == (1, 1) and not ceil and pairs[0][0] * pairs[0][1] < 255
    if known and maps.is_contiguous() and kernels.available(maps):
        y: Tensor = _Pooled.apply(maps, pairs)  # type: ignore[no-untyped-call]
        return y
    plain: Tensor = F.max_pool2d(maps, *how)
    return plain


class _Pooled(torch.autograd.Function):
    """max_pool2d by the kernels for GPUs."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, pairs: Any) -> Tensor:  # type: ignore[override]
        ctx.size, ctx.pairs = maps.shape[-2:], pairs
        y, winners = kernels.pooled(maps, kernels.outputs(ctx.size, *pairs), *pairs)
        ctx.save_for_backward(winners)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        (winners,) = ctx.saved_tensors
        return kernels.unpooled(g.contiguous(), winners, ctx.size, *ctx.pairs), None


def _max_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    how = (kernel_size, stride or kernel_size, padding, dilation, ceil_mode)
    if return_indices or input.dim() != 4:
        return F.max_pool2d(input, *how, return_indices)  # type: ignore[call-overload]
    return _MaxPool.apply(input, how)  # type: ignore[no-untyped-call]


# ---------------------------------------------------------------------------- batch norm


class _BatchNorm(torch.autograd.Function):
    """batch_norm with a channel for every client's channel, wherever the samples lie."""

    @staticmethod
    def forward(x: Tensor, mean: Any, var: Any, w: Any, b: Any, how: tuple[Any, ...]) -> Tensor:
        return F.batch_norm(x, mean, var, w, b, *how)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, mean, var, w, b, ctx.how = inputs
        training = ctx.how[0]  # then the running statistics play no part in the gradient
        ctx.save_for_backward(x, *((None, None) if training else (mean, var)), w, b)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        x, mean, var, w, b = ctx.saved_tensors
        training, _, eps = ctx.how
        trained = [t for t in (x, w, b) if t is not None]

        def norm(x: Tensor, *affine: Tensor) -> Tensor:
            w, b = affine or (None, None)
            return F.batch_norm(x, mean, var, w, b, training, 0.0, eps)

        gx, *rest = torch.func.vjp(norm, *trained)[1](g)
        gw, gb = rest or (None, None)
        return gx, None, None, gw, gb, None

    @staticmethod
    def vmap(
        info: Any,
        dims: tuple[Dim, ...],
        x: Tensor,
        mean: Tensor | None,
        var: Tensor | None,
        w: Tensor | None,
        b: Tensor | None,
        how: tuple[Any, ...],
    ) -> tuple[Tensor, int]:
        clients = info.batch_size
        x = _front(x, dims[0], clients)
        # [K, C] as [K C]: views, not copies, since running statistics are moved in place
        mean, var, w, b = (
            t if t is None else _front(t, d, clients).reshape(-1)
            for t, d in zip((mean, var, w, b), dims[1:5])
        )
        if x.stride(2) > x.stride(1):  # lies as [K, C, B, H, W]
            maps = x.transpose(1, 2)
            y = _normalised(maps.reshape(1, len(maps[0]) * clients, -1), mean, var, w, b, how)
            return y.reshape(maps.shape).transpose(1, 2), 0
        maps = x.transpose(0, 1)
        y = _normalised(maps.reshape(len(maps), -1, *x.shape[3:]), mean, var, w, b, how)
        return y.reshape(maps.shape).transpose(0, 1), 0


def _normalised(
    maps: Tensor, mean: Any, var: Any, w: Any, b: Any, how: tuple[bool, float, float]
) -> Tensor:
    """batch_norm; in float64 by torch's own kernels, since cuDNN's gradient loses digits there."""
    library = maps.dtype != torch.float64 and torch.backends.cudnn.enabled
    return torch.batch_norm(maps, w, b, mean, var, *how, library)


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    how = (training, momentum, eps)
    if (weight is None) != (bias is None):
        return F.batch_norm(input, running_mean, running_var, weight, bias, *how)
    statistics, affine = (running_mean, running_var), (weight, bias)
    y: Tensor = _BatchNorm.apply(input, *statistics, *affine, how)  # type: ignore[no-untyped-call]
    return y


# ---------------------------------------------------------------------------- what they share


def _front(t: Tensor, dim: Dim, clients: int) -> Tensor:
    """The client axis in front; what all clients share is repeated without a copy."""
    return t.expand(clients, *t.shape) if dim is None else t.movedim(dim, 0)


def _pair(value: Any) -> tuple[int, int]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)  # type: ignore[return-value]


_HANDLERS: dict[Any, Callable[..., Any]] = {
    F.conv2d: _conv2d,
    F.linear: _linear,
    F.max_pool2d: _max_pool2d,
    torch.max_pool2d: _max_pool2d,
    F.batch_norm: _batch_norm,
}
