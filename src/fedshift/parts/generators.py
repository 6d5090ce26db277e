"""Small networks that make or change embeddings, told by a label which class is wanted.

The label enters as one-hot columns beside the vector. Labels are whole numbers [B].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedshift.models.contract import block
from fedshift.parts.labels import one_hot


def with_label(x: Tensor, y: Tensor, classes: int) -> Tensor:
    """Vectors [B, D] with their labels as one-hot columns behind them, [B, D + classes].

    >>> with_label(torch.zeros(1, 2), torch.tensor([1]), 3)
    tensor([[0., 0., 0., 1., 0.]])
    """
    return torch.cat([x, one_hot(y, classes, x)], dim=1)


class Generator(nn.Module):
    """Noise and a label in, an embedding out; not below zero, like embeddings behind a ReLU.

    Args:
        noise: width of the noise.
        classes: how many labels there are.
        width: of the embeddings.

    >>> sum(p.numel() for p in Generator(256, 10, 512).parameters())
    401408
    """

    def __init__(self, noise: int, classes: int, width: int) -> None:
        super().__init__()
        self.classes = classes
        self.hidden = block(
            linear=nn.Linear(noise + classes, width), norm=nn.BatchNorm1d(width), relu=nn.ReLU()
        )
        self.out = block(linear=nn.Linear(width, width), norm=nn.BatchNorm1d(width), relu=nn.ReLU())

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Embeddings [B, width] of the classes y from noise z."""
        made: Tensor = self.out(self.hidden(with_label(z, y, self.classes)))
        return made


class ResidualNet(nn.Module):
    """An embedding and its label in, a residual of either sign out.

    Args:
        width: of embeddings and residuals.
        classes: how many labels there are.
        hidden: width of the layer between.
        norm: batch norm on the output.

    >>> sum(p.numel() for p in ResidualNet(512, 10, 256).parameters())
    267008
    """

    def __init__(self, width: int, classes: int, hidden: int, norm: bool = True) -> None:
        super().__init__()
        self.classes = classes
        self.hidden = block(
            linear=nn.Linear(width + classes, hidden), norm=nn.BatchNorm1d(hidden), relu=nn.ReLU()
        )
        behind = {"norm": nn.BatchNorm1d(width)} if norm else {}
        self.out = block(linear=nn.Linear(hidden, width), **behind)

    def forward(self, v: Tensor, y: Tensor) -> Tensor:
        """Residuals [B, width]."""
        residual: Tensor = self.out(self.hidden(with_label(v, y, self.classes)))
        return residual
