"""The transformer with shifted windows Swin-T (Liu et al. 2021), as in FedFA+."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedshift.models.attention import Attention, DropBranch, initialise
from fedshift.models.contract import Staged, block, image

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "swin-t": ("Swin-T, a transformer with shifted windows, as trained on ImageNet (224x224).", {}),
}

WINDOW = 7
HEAD = 32  # channels of a head
BRANCH_DROPOUT = 0.2  # of the last block; the first has none, between them it rises evenly


class WindowAttention(Attention):
    """Attention within windows of 7x7, with a learnt score for every distance.

    `shifted` windows lie half a window further; what comes together there only because the image is
    rolled around does not look at each other. A side that one window covers is not shifted.
    """

    index: Tensor

    def __init__(self, width: int, shifted: bool) -> None:
        super().__init__(width, width // HEAD, bias=True)
        self.shift = WINDOW // 2 if shifted else 0
        self.table = nn.Parameter(torch.zeros((2 * WINDOW - 1) ** 2, self.heads))
        nn.init.trunc_normal_(self.table, std=0.02)
        place = torch.cartesian_prod(torch.arange(WINDOW), torch.arange(WINDOW))
        apart = place[:, None] - place[None] + WINDOW - 1
        index = apart[..., 0] * (2 * WINDOW - 1) + apart[..., 1]
        self.register_buffer("index", index, persistent=False)

    def forward(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """Tokens on a grid, [B, H, W, C], and the same shape out; sides are padded to windows."""
        height, width = x.shape[1:3]
        x = F.pad(x, (0, 0, 0, -width % WINDOW, 0, -height % WINDOW))
        sides = x.shape[1:3]
        shifts = [self.shift if side > WINDOW else 0 for side in sides]
        x = torch.roll(x, [-s for s in shifts], (1, 2))
        bias = self.table[self.index].movedim(-1, 0)
        apart = _apart(sides, shifts, x.device) if any(shifts) else None
        scores = bias if apart is None else bias + apart.to(x.dtype).unsqueeze(1) * -100.0
        x = _grid(super().forward(_windows(x), scores), sides)
        return torch.roll(x, shifts, (1, 2))[:, :height, :width]


def _windows(x: Tensor) -> Tensor:
    """[B, H, W, C] as [B, windows, tokens of a window, C]."""
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height // WINDOW, WINDOW, width // WINDOW, WINDOW, channels)
    return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def _grid(x: Tensor, sides: tuple[int, ...]) -> Tensor:
    """What `_windows` cut, put together."""
    rows, columns = (side // WINDOW for side in sides)
    x = x.reshape(len(x), rows, columns, WINDOW, WINDOW, x.shape[-1])
    return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def _apart(sides: tuple[int, ...], shifts: list[int], device: torch.device) -> Tensor:
    """Which tokens of each window are no neighbours in the image, [windows, tokens, tokens]."""
    regions = []
    for side, shift in zip(sides, shifts):
        at = torch.arange(side, device=device)
        regions.append((at >= side - WINDOW).long() + (at >= side - shift).long() * bool(shift))
    region = (3 * regions[0][:, None] + regions[1])[None, :, :, None]
    found = _windows(region)[0, ..., 0]
    return found[:, :, None] != found[:, None, :]


class Block(nn.Module):
    """Attention within windows and two dense layers, each added to its input."""

    def __init__(self, width: int, shifted: bool, drop: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = WindowAttention(width, shifted)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = block(
            linear1=nn.Linear(width, 4 * width), gelu=nn.GELU(), linear2=nn.Linear(4 * width, width)
        )
        self.drop = DropBranch(drop)

    def forward(self, x: Tensor) -> Tensor:
        """[B, H, W, C] in and out."""
        x = x + self.drop(self.attn(self.norm1(x)))
        out: Tensor = x + self.drop(self.mlp(self.norm2(x)))
        return out


class Patches(nn.Module):
    """An image as patches of 4x4, each a token."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 4, stride=4)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to [B, H/4, W/4, width]."""
        out: Tensor = self.norm(self.conv(x).movedim(1, -1))
        return out


class Merge(nn.Module):
    """Every 2x2 tokens become one of twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to a grid of tokens [B, H/2, W/2, 2 C]; odd sides are padded."""
        x = x.movedim(1, -1)
        x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        corners = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        out: Tensor = self.reduction(self.norm(torch.cat(corners, -1)))
        return out


class Maps(nn.Module):
    """A grid of tokens as maps [B, C, H, W], which methods expect behind a stage."""

    def forward(self, x: Tensor) -> Tensor:
        """The same numbers, channels first."""
        return x.movedim(-1, 1)


class SwinT(Staged):
    """Four stages of 2, 2, 6 and 2 blocks, a norm, global average pool.

    28,288,354 parameters for 1000 classes: torchvision's, which reads files of its weights.
    """

    published = (
        (r"^features\.0\.0\.", "stage1.first.conv."),
        (r"^features\.0\.2\.", "stage1.first.norm."),
        *((rf"^features\.{2 * i - 1}\.", f"stage{i}.blocks.") for i in (1, 2, 3, 4)),
        *((rf"^features\.{2 * i - 2}\.", f"stage{i}.first.") for i in (2, 3, 4)),
        (r"\.attn\.relative_position_bias_table$", ".attn.table"),
        (r"\.mlp\.0\.", ".mlp.linear1."),
        (r"\.mlp\.3\.", ".mlp.linear2."),
    )
    left_out = (r"\.relative_position_index$",)

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        width: int = 96,
        depths: tuple[int, ...] = (2, 2, 6, 2),
    ) -> None:
        super().__init__()
        channels, _, _ = image(shape, "swin-t", least=32)
        self.stages = tuple(f"stage{i}" for i in range(1, len(depths) + 1))
        drops = (BRANCH_DROPOUT * k / (sum(depths) - 1) for k in itertools.count())
        for stage, depth in zip(self.stages, depths):
            begins = stage == "stage1"
            first = Patches(channels, width) if begins else Merge(width)
            width = width if begins else 2 * width
            blocks = [Block(width, k % 2 == 1, next(drops)) for k in range(depth)]
            parts = block(first=first, blocks=nn.Sequential(*blocks), maps=Maps())
            self.add_module(stage, parts)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        self.apply(initialise)

    def join(self, x: Tensor) -> Tensor:
        """The mean of the tokens, each normalised."""
        z: Tensor = self.norm(x.movedim(1, -1)).mean((1, 2))
        return z


def network(shape: tuple[int, ...], classes: int, **options: Any) -> SwinT:
    """The network for images of a shape; `options` are those of `SwinT`.

    >>> network((3, 32, 32), 10).stages
    ('stage1', 'stage2', 'stage3', 'stage4')
    """
    return SwinT(shape, classes, **options)
