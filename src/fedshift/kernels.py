"""Kernels for GPUs where torch's are several times slower than memory allows.

Patches of maps for convolutions as products (`fedshift.layers`), the sum of patches that is their
gradient, max pooling with its gradient, and the gradients of few samples and many weights. Each
writes every element of its result once, so the sums have a fixed order. They are in Triton, which
comes with torch's builds for CUDA; `available` says whether they can be used, and everything has a
form in plain torch beside it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # builds of torch for CPUs have none
    triton = None

_BLOCK = 1024
_ROWS, _COLUMNS = 32, 128  # of weights, in a block


@functools.cache
def _works(device: torch.device) -> bool:
    """Whether Triton can build for a device (it needs a C compiler on the machine)."""
    try:
        patches(torch.ones(1, 1, 1, 2, 2, device=device), (1, 1), (1, 1), (0, 0))
    except Exception:
        return False
    return True


def available(x: Tensor) -> bool:
    """Whether the kernels can take a tensor: one on a GPU, and not one that vmap looks through."""
    if triton is None or not x.is_cuda or torch._C._functorch.is_functorch_wrapped_tensor(x):
        return False
    return _works(x.device)


def patches(
    x: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    ones: int = 0,
) -> Tensor:
    """Every patch of maps [K, B, C, H, W] that a kernel covers: [K, C h w, B rows columns].

    With `ones`, a last row of ones for each client: [K, C h w + 1, …].
    """
    clients, batch, channels, *_ = x.shape
    rows, columns = outputs(x.shape[3:], kernel, stride, padding)
    taps = channels * kernel[0] * kernel[1] + ones
    found = x.new_empty(clients, taps, batch * rows * columns)
    length = batch * rows * columns
    grid = (clients * taps, triton.cdiv(length, _BLOCK))
    _patches[grid](
        x, found, *x.stride(), length, *x.shape[2:], rows, columns,
        *kernel, *stride, *padding, ones, block=_BLOCK,
    )  # fmt: skip
    return found


def summed(
    patches: Tensor,
    shape: tuple[int, ...],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
) -> Tensor:
    """The gradient of maps of a shape [K, B, C, H, W] from that of their patches.

    It lies in memory as [K, C, B, H, W]. A last row of patches, that of ones, is left out.
    """
    clients, batch, channels, height, width = shape
    rows, columns = outputs(shape[3:], kernel, stride, padding)
    ones = patches.shape[1] - channels * kernel[0] * kernel[1]
    found = patches.new_empty(clients, channels, batch, height, width)
    length = batch * height * width
    grid = (clients * channels, triton.cdiv(length, _BLOCK))
    _summed[grid](
        patches, found, length, batch * rows * columns, channels, height, width, rows, columns,
        *kernel, *stride, *padding, ones, block=_BLOCK,
    )  # fmt: skip
    return found.transpose(1, 2)


def pooled(
    maps: Tensor,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """Max pooling of maps [..., H, W] to a size, and the place in the kernel of each maximum."""
    found = maps.new_empty(*maps.shape[:-2], *size)
    winners = torch.empty_like(found, dtype=torch.uint8)
    length = found.numel()
    _pooled[(triton.cdiv(length, _BLOCK),)](
        maps, found, winners, length, *maps.shape[-2:], *size,
        *kernel, *stride, *padding, wide=_wide(maps), block=_BLOCK,
    )  # fmt: skip
    return found, winners


def unpooled(
    gradient: Tensor,
    winners: Tensor,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
) -> Tensor:
    """The gradient of maps [..., H, W] from that of their max pooling and what `pooled` noted."""
    rows, columns = winners.shape[-2:]
    found = gradient.new_empty(*gradient.shape[:-2], *size)
    length = found.numel()
    _unpooled[(triton.cdiv(length, _BLOCK),)](
        gradient, winners, found, length, *size, rows, columns,
        *kernel, *stride, *padding, wide=_wide(found), block=_BLOCK,
    )  # fmt: skip
    return found


def linear_inputs(g: Tensor, w: Tensor) -> Tensor:
    """The gradient of x [K, B, I] from g [K, B, O], that of x times the weights w [K, O, I].

    For a few samples of each client.
    """
    clients, batch, outputs = g.shape
    inputs = w.shape[2]
    found = g.new_empty(clients, batch, inputs)
    grid = (clients, triton.cdiv(inputs, _COLUMNS))
    _by_inputs[grid](g, w, found, batch, outputs, inputs, _least(batch), _ROWS, _COLUMNS)
    return found


def linear_weights(g: Tensor, x: Tensor) -> Tensor:
    """The gradient of those weights, likewise."""
    clients, batch, outputs = g.shape
    inputs = x.shape[2]
    found = g.new_empty(clients, outputs, inputs)
    grid = (clients, triton.cdiv(outputs, _ROWS), triton.cdiv(inputs, _COLUMNS))
    _by_weights[grid](g, x, found, batch, outputs, inputs, _least(batch), _ROWS, _COLUMNS)
    return found


def _least(batch: int) -> int:
    """What a product of blocks takes at least."""
    return max(16, 1 << (batch - 1).bit_length())


def _wide(maps: Tensor) -> bool:
    """Whether places need 64 bits; divisions by numbers of 32 are several times faster."""
    return maps.numel() >= 1 << 30


def outputs(
    size: Any, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> tuple[int, int]:
    """Rows and columns of what a kernel makes of a map.

    >>> outputs((28, 28), (5, 5), (1, 1), (0, 0))
    (24, 24)
    """
    height, width = ((n + 2 * p - k) // s + 1 for n, k, s, p in zip(size, kernel, stride, padding))
    return height, width


if triton is not None:

    @triton.jit
    def _patches(
        x, found, over_k, over_b, over_c, over_h, over_w, length, channels: tl.constexpr,
        height: tl.constexpr, width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
        kh: tl.constexpr, kw: tl.constexpr, sh: tl.constexpr, sw: tl.constexpr,
        ph: tl.constexpr, pw: tl.constexpr, ones: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)  # a client, a channel, and a place in the kernel
        at = tl.program_id(1) * block + tl.arange(0, block)
        client = row // (channels * kh * kw + ones)
        tap = row % (channels * kh * kw + ones)
        channel = tap // (kh * kw)
        sample = at // (rows * columns)
        h = (at // columns) % rows * sh + (tap // kw) % kh - ph
        w = at % columns * sw + tap % kw - pw
        inside = (at < length) & (h >= 0) & (h < height) & (w >= 0) & (w < width)
        place = client * over_k + channel * over_c + sample * over_b + h * over_h + w * over_w
        real = tap < channels * kh * kw
        value = tl.load(x + place, mask=inside & real, other=0.0)
        tl.store(found + row * length + at, tl.where(real, value, 1.0), mask=at < length)

    @triton.jit
    def _summed(
        patches, found, length, positions, channels: tl.constexpr, height: tl.constexpr,
        width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, kh: tl.constexpr,
        kw: tl.constexpr, sh: tl.constexpr, sw: tl.constexpr, ph: tl.constexpr,
        pw: tl.constexpr, ones: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)  # a client and a channel
        first = row * kh * kw + row // channels * ones  # row of its patches
        at = tl.program_id(1) * block + tl.arange(0, block)
        sample = at // (height * width)
        h = (at // width) % height + ph
        w = at % width + pw
        total = tl.zeros((block,), dtype=patches.dtype.element_ty)
        for i in tl.static_range(kh):
            for j in tl.static_range(kw):
                r, c = (h - i) // sh, (w - j) // sw
                hit = (at < length) & (h >= i) & (w >= j) & (r < rows) & (c < columns)
                hit = hit & ((h - i) % sh == 0) & ((w - j) % sw == 0)
                place = (first + i * kw + j) * positions + (sample * rows + r) * columns + c
                total += tl.load(patches + place, mask=hit, other=0.0)
        tl.store(found + row * length + at, total, mask=at < length)

    @triton.jit
    def _pooled(
        maps, found, winners, length, height: tl.constexpr, width: tl.constexpr,
        rows: tl.constexpr, columns: tl.constexpr, kh: tl.constexpr, kw: tl.constexpr,
        sh: tl.constexpr, sw: tl.constexpr, ph: tl.constexpr, pw: tl.constexpr,
        wide: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        at = tl.program_id(0) * block + tl.arange(0, block)
        if wide:
            at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
        plane = at // (rows * columns)
        h, w = (at // columns) % rows * sh - ph, at % columns * sw - pw
        most = tl.full((block,), float("-inf"), dtype=maps.dtype.element_ty)
        winner = tl.full((block,), -1, dtype=tl.int32)
        for i in tl.static_range(kh):
            for j in tl.static_range(kw):
                inside = (h + i >= 0) & (h + i < height) & (w + j >= 0) & (w + j < width)
                inside = inside & (at < length)
                place = (plane * height + h + i) * width + w + j
                value = tl.load(maps + place, mask=inside, other=float("-inf"))
                # the first of equals, and NaN above all, as torch has it
                better = inside & ((value > most) | (value != value) | (winner < 0))
                most = tl.where(better, value, most)
                winner = tl.where(better, i * kw + j, winner)
        tl.store(found + at, most, mask=at < length)
        tl.store(winners + at, winner.to(tl.uint8), mask=at < length)

    @triton.jit
    def _unpooled(
        gradient, winners, found, length, height: tl.constexpr, width: tl.constexpr,
        rows: tl.constexpr, columns: tl.constexpr, kh: tl.constexpr, kw: tl.constexpr,
        sh: tl.constexpr, sw: tl.constexpr, ph: tl.constexpr, pw: tl.constexpr,
        wide: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        at = tl.program_id(0) * block + tl.arange(0, block)
        if wide:
            at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
        plane = at // (height * width)
        h, w = (at // width) % height + ph, at % width + pw
        total = tl.zeros((block,), dtype=gradient.dtype.element_ty)
        for i in tl.static_range(kh):
            for j in tl.static_range(kw):
                r, c = (h - i) // sh, (w - j) // sw
                hit = (at < length) & (h >= i) & (w >= j) & (r < rows) & (c < columns)
                hit = hit & ((h - i) % sh == 0) & ((w - j) % sw == 0)
                place = (plane * rows + r) * columns + c
                won = tl.load(winners + place, mask=hit, other=255) == i * kw + j
                total += tl.load(gradient + place, mask=hit & won, other=0.0)
        tl.store(found + at, total, mask=at < length)

    @triton.jit
    def _by_inputs(
        g, w, found, batch: tl.constexpr, outputs: tl.constexpr, inputs: tl.constexpr,
        samples: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
    ):  # fmt: skip
        client = tl.program_id(0).to(tl.int64)
        i = tl.program_id(1) * columns + tl.arange(0, columns)[None, :]
        b = tl.arange(0, samples)[:, None]
        g, w = g + client * batch * outputs, w + client * outputs * inputs
        total = tl.zeros((samples, columns), dtype=tl.float32)
        for start in range(0, outputs, rows):
            o = start + tl.arange(0, rows)
            across, down = o[None, :], o[:, None]
            values = tl.load(g + b * outputs + across, (b < batch) & (across < outputs), 0.0)
            weights = tl.load(w + down * inputs + i, (down < outputs) & (i < inputs), 0.0)
            total += tl.dot(values, weights, input_precision="ieee")
        tl.store(found + (client * batch + b) * inputs + i, total, (b < batch) & (i < inputs))

    @triton.jit
    def _by_weights(
        g, x, found, batch: tl.constexpr, outputs: tl.constexpr, inputs: tl.constexpr,
        samples: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
    ):  # fmt: skip
        client = tl.program_id(0).to(tl.int64)
        o = tl.program_id(1) * rows + tl.arange(0, rows)
        i = tl.program_id(2) * columns + tl.arange(0, columns)[None, :]
        b = tl.arange(0, samples)
        g, x = g + client * batch * outputs, x + client * batch * inputs
        across, down, left = b[None, :], b[:, None], o[:, None]
        slopes = tl.load(g + across * outputs + left, (across < batch) & (left < outputs), 0.0)
        values = tl.load(x + down * inputs + i, (down < batch) & (i < inputs), 0.0)
        total = tl.dot(slopes, values, input_precision="ieee")
        place = found + (client * outputs + left) * inputs + i
        tl.store(place, total, (left < outputs) & (i < inputs))
