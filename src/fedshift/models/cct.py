"""The compact convolutional transformer CCT-7/3x1 (Hassani et al. 2021), as in FedBR (32x32x3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedshift.models.attention import Attention, DropBranch, initialise
from fedshift.models.contract import Staged, block, image

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "cct-7/3x1": ("CCT-7/3x1, a compact convolutional transformer, as in FedBR (32x32).", {}),
}

WIDTH = 256
HEADS = 4
HIDDEN = 512
BLOCKS = 7
ATTENTION_DROPOUT = 0.1
BRANCH_DROPOUT = 0.1  # of the last block; the first has none, between them it rises evenly


class Tokens(nn.Module):
    """An image as tokens [B, T, C]: a convolution, ReLU and pool, and learnt positions added."""

    def __init__(self, channels: int, count: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, WIDTH, 3, padding=1, bias=False)
        # Pooling commutes with ReLU, which has less to do behind it.
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.relu = nn.ReLU()
        self.positions = nn.Parameter(torch.zeros(1, count, WIDTH))
        nn.init.kaiming_normal_(self.conv.weight)
        nn.init.trunc_normal_(self.positions, std=0.2)

    def forward(self, x: Tensor) -> Tensor:
        """The tokens of images."""
        maps: Tensor = self.relu(self.pool(self.conv(x)))
        return maps.flatten(2).transpose(1, 2) + self.positions


class Block(nn.Module):
    """An encoder layer whose second norm stands behind the first sum, not in the second branch."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention(WIDTH, HEADS, bias=False, dropout=ATTENTION_DROPOUT)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = block(
            linear1=nn.Linear(WIDTH, HIDDEN), gelu=nn.GELU(), linear2=nn.Linear(HIDDEN, WIDTH)
        )
        self.drop = DropBranch(drop)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens in, tokens out."""
        x = self.norm2(x + self.drop(self.attention(self.norm1(x))))
        out: Tensor = x + self.drop(self.mlp(x))
        return out


class CCT(Staged):
    """Tokens, seven encoder layers, and a mean of the tokens whose weights are learnt.

    3,783,269 parameters for 3x32x32 and 100 classes, 3,757,569 of them before the head. Positions
    belong to the size of the image. The paper's 22.4 M is the size of another, CCT-14.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = image(shape, "cct-7/3x1", least=8)
        self.stages = ("tokens", *(f"block{i}" for i in range(1, BLOCKS + 1)))
        self.tokens = Tokens(channels, ((height + 1) // 2) * ((width + 1) // 2))
        for i in range(BLOCKS):
            self.add_module(f"block{i + 1}", Block(BRANCH_DROPOUT * i / (BLOCKS - 1)))
        self.norm = nn.LayerNorm(WIDTH)
        self.pool = nn.Linear(WIDTH, 1)
        self.head = nn.Linear(WIDTH, classes)
        self.apply(initialise)

    def join(self, x: Tensor) -> Tensor:
        """The weighted mean of the tokens."""
        x = self.norm(x)
        weights = torch.softmax(self.pool(x), 1)
        return (weights.transpose(1, 2) @ x).squeeze(1)


def network(shape: tuple[int, ...], classes: int) -> CCT:
    """The network for images of a shape.

    >>> sum(p.numel() for p in network((3, 32, 32), 100).parameters())
    3783269
    """
    return CCT(shape, classes)
