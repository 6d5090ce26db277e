"""U-Nets, which label every pixel: that of FedFA and HarmoFL, and a small one."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedshift.models.contract import Staged, block, image

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "unet": ("U-Net of FedFA and HarmoFL, widths 32 to 512 (for segmentation).", {}),
    "unet-small": (
        "U-Net of three levels, widths 8 to 64, for small images (for segmentation).",
        {"width": 8, "levels": 3},
    ),
}


class UNet(Staged):
    """Levels of two convolutions with norm; down by pools of 2, up by transposed convolutions.

    On the way down each level doubles the width and hands its maps, before the pool, over to the
    level of the same size on the way up. The stages are the pools and the bottleneck: what a method
    puts behind them is not in the maps that are handed over, and the way up has none (as in FedFA).
    The head is the last convolution, 1x1, so that the features are maps of the size of the image.

    Args:
        shape: of one sample; sides that cannot be halved often enough are filled up with zeros.
        classes: outputs for each pixel.
        width: channels of the first level.
        levels: pools on the way down.
    """

    entry = "encoder1"  # what stands in front of the network goes before this

    def __init__(
        self, shape: tuple[int, ...], classes: int, width: int = 32, levels: int = 4
    ) -> None:
        super().__init__()
        channels, _, _ = image(shape, "unet", least=2**levels)
        self.levels = levels
        widths = [width * 2**k for k in range(levels + 1)]
        for k, (inputs, outputs) in enumerate(zip([channels, *widths], widths[:-1]), start=1):
            self.add_module(f"encoder{k}", _twice(inputs, outputs))
            self.add_module(f"pool{k}", nn.MaxPool2d(2))
        self.bottleneck = _twice(widths[-2], widths[-1])
        for k in range(levels, 0, -1):
            self.add_module(f"up{k}", nn.ConvTranspose2d(widths[k], widths[k - 1], 2, stride=2))
            self.add_module(f"decoder{k}", _twice(widths[k], widths[k - 1]))
        self.head = nn.Conv2d(width, classes, 1)
        self.stages = (*(f"pool{k}" for k in range(1, levels + 1)), "bottleneck")

    def features(self, x: Tensor) -> Tensor:
        """The maps that the head labels, [B, width, H, W]."""
        across = []
        for k in range(1, self.levels + 1):
            across.append(self.get_submodule(f"encoder{k}")(x))
            x = self.get_submodule(f"pool{k}")(across[-1])
        x = self.bottleneck(x)
        for k in range(self.levels, 0, -1):
            kept = across.pop()
            x = _filled(self.get_submodule(f"up{k}")(x), kept)
            x = self.get_submodule(f"decoder{k}")(torch.cat([x, kept], dim=1))
        return x


def _twice(inputs: int, outputs: int) -> nn.Sequential:
    # No bias: the norms that follow take the means away.
    return block(
        conv1=nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        norm1=nn.BatchNorm2d(outputs),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        norm2=nn.BatchNorm2d(outputs),
        relu2=nn.ReLU(),
    )


def _filled(x: Tensor, like: Tensor) -> Tensor:
    """Maps with zeros to the right and below, where the size that was halved was odd."""
    down, right = like.shape[-2] - x.shape[-2], like.shape[-1] - x.shape[-1]
    return F.pad(x, (0, right, 0, down)) if down or right else x


def network(shape: tuple[int, ...], classes: int, width: int = 32, levels: int = 4) -> UNet:
    """The network for images of a shape.

    >>> sum(p.numel() for p in network((3, 384, 384), 2).parameters())
    7763074
    """
    return UNet(shape, classes, width, levels)
