"""DenseNet of 100 layers and growth 12 (Huang et al. 2017), with its stem for small images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedshift.models.contract import Staged, block, image

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "densenet100": (
        "DenseNet-BC with 100 layers and growth 12: bottlenecks, half the maps in transitions.",
        {"bottleneck": True},
    ),
    "densenet100-plain": (
        "DenseNet with 100 layers and growth 12, without bottlenecks and compression.",
        {"bottleneck": False},
    ),
}


class Dense(nn.Module):
    """A layer that appends `growth` maps to its input."""

    def __init__(self, inputs: int, growth: int, bottleneck: bool) -> None:
        super().__init__()
        parts: dict[str, nn.Module] = {}
        if bottleneck:
            parts |= _norm("1", inputs)
            parts["conv1"] = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
            inputs = 4 * growth
        parts |= _norm("2", inputs)
        parts["conv2"] = nn.Conv2d(inputs, growth, 3, padding=1, bias=False)
        self.body = block(**parts)

    def forward(self, x: Tensor) -> Tensor:
        """The input and the new maps behind it."""
        return torch.cat([x, self.body(x)], 1)


class DenseNet(Staged):
    """A 3x3 stem, three dense blocks (the first two with a transition that halves the sides), norm.

    769,162 parameters for 10 classes, 6,979,642 without bottlenecks and compression, for three
    channels. FedFA names DenseNet-100 with growth 12 and does not say which of the two; stages are
    the stem, the blocks with their transitions, and the last norm with its ReLU. Convolutions begin
    as He et al. (2015) say.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        bottleneck: bool = True,
        depth: int = 100,
        growth: int = 12,
    ) -> None:
        super().__init__()
        channels, _, _ = image(shape, "densenet100", least=8)
        layers = (depth - 4) // (6 if bottleneck else 3)
        maps = 2 * growth if bottleneck else 16
        self.stages = ("stem", "block1", "block2", "block3", "last")
        self.stem = block(conv=nn.Conv2d(channels, maps, 3, padding=1, bias=False))
        for stage in self.stages[1:4]:
            parts: dict[str, nn.Module] = {}
            for i in range(1, layers + 1):
                parts[f"dense{i}"] = Dense(maps, growth, bottleneck)
                maps += growth
            if stage != "block3":
                outputs = maps // 2 if bottleneck else maps
                conv = nn.Conv2d(maps, outputs, 1, bias=False)
                parts["transition"] = block(**_norm("", maps), conv=conv, pool=nn.AvgPool2d(2))
                maps = outputs
            self.add_module(stage, block(**parts))
        self.last = block(**_norm("", maps))
        self.head = nn.Linear(maps, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def join(self, x: Tensor) -> Tensor:
        """Global average pooling, as a mean: adaptive pooling does not compile under vmap."""
        return x.mean((2, 3))


def _norm(number: str, channels: int) -> dict[str, nn.Module]:
    return {f"norm{number}": nn.BatchNorm2d(channels), f"relu{number}": nn.ReLU()}


def network(shape: tuple[int, ...], classes: int, **options: Any) -> DenseNet:
    """The network for images of a shape; `options` are those of `DenseNet`.

    >>> sum(p.numel() for p in network((3, 32, 32), 10).parameters())
    769162
    """
    return DenseNet(shape, classes, **options)
