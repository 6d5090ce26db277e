"""Geometry on batches of images: rotate and crop by gathering pixels, sample by sample alike.

Grids are made with elementwise arithmetic only (no matrix product, whose precision depends on the
device's settings), so that a result depends on nothing but the sample and its own parameters.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def _centred(n: int, like: Tensor) -> Tensor:
    """Pixel centres measured from the middle of the axis."""
    return torch.arange(n, device=like.device, dtype=like.dtype) - (n - 1) / 2


def _rotated_grid(angle: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Where every output pixel comes from, as x and y [N, H, W] measured from the middle."""
    cos = torch.cos(angle)[:, None, None]
    sin = torch.sin(angle)[:, None, None]
    x = _centred(width, angle)[None, None, :]
    y = _centred(height, angle)[None, :, None]
    return cos * x - sin * y, sin * x + cos * y


def rotate(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate float images [N, C, H, W] counter-clockwise by angles [N] in radians (bilinear).

    What comes from outside the image is 0.
    """
    height, width = x.shape[-2:]
    from_x, from_y = _rotated_grid(angle.to(x.dtype), height, width)
    grid = torch.stack([from_x * (2 / width), from_y * (2 / height)], dim=-1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def rotate_nearest(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate images [N, C, H, W] of any type by angles [N] (or [1]: one for all) in radians.

    Every pixel is copied whole from the nearest one; what comes from outside is 0.

    >>> import math
    >>> image = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
    >>> rotate_nearest(image, torch.tensor([math.pi / 2]))[0, 0].tolist()
    [[2, 4], [1, 3]]
    """
    height, width = x.shape[-2:]
    from_x, from_y = _rotated_grid(angle.to(torch.float64), height, width)
    column = torch.round(from_x + (width - 1) / 2).to(torch.int64)
    row = torch.round(from_y + (height - 1) / 2).to(torch.int64)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    index = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
    index = index.flatten(1)[:, None, :].expand(x.shape[0], x.shape[1], -1)
    moved = torch.gather(x.flatten(2), 2, index).reshape(x.shape)
    return torch.where(inside[:, None], moved, torch.zeros((), dtype=x.dtype, device=x.device))


def resize_window(
    x: Tensor, left: Tensor, top: Tensor, width: Tensor, height: Tensor, nearest: bool = False
) -> Tensor:
    """Cut a window out of each float image and stretch it to the full size (bilinear, or nearest).

    The window [N] is in pixels from the upper left corner and may lie between pixels.
    """
    rows, columns = x.shape[-2:]
    step_x = (torch.arange(columns, device=x.device, dtype=x.dtype) + 0.5) / columns
    step_y = (torch.arange(rows, device=x.device, dtype=x.dtype) + 0.5) / rows
    edge_x = left[:, None] + width[:, None] * step_x
    edge_y = top[:, None] + height[:, None] * step_y
    shape = (x.shape[0], rows, columns)
    grid_x = (edge_x * (2 / columns) - 1)[:, None, :].expand(shape)
    grid_y = (edge_y * (2 / rows) - 1)[:, :, None].expand(shape)
    grid = torch.stack([grid_x, grid_y], dim=-1)
    mode = "nearest" if nearest else "bilinear"
    return F.grid_sample(x, grid, mode=mode, padding_mode="border", align_corners=False)


def shift(x: Tensor, right: Tensor, down: Tensor, padding: int) -> Tensor:
    """Move images [N, C, H, W] by whole pixels [N] (at most `padding`), filling with 0."""
    height, width = x.shape[-2:]
    padded = F.pad(x, (padding,) * 4)
    row = torch.arange(height, device=x.device) + padding - down[:, None]
    column = torch.arange(width, device=x.device) + padding - right[:, None]
    row = row[:, None, :, None].expand(-1, x.shape[1], -1, padded.shape[-1])
    column = column[:, None, None, :].expand(-1, x.shape[1], height, -1)
    return torch.gather(torch.gather(padded, 2, row), 3, column)
