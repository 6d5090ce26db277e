"""A U-Net of three levels and widths 8 to 64, for small images and quick tries (segmentation)."""

from __future__ import annotations

from fedshift.models.unet import UNet


def network(shape: tuple[int, ...], classes: int) -> UNet:
    """The network for images of a shape.

    >>> sum(p.numel() for p in network((1, 32, 32), 2).parameters())
    121042
    """
    return UNet(shape, classes, width=8, levels=3, name="unet-small")
