"""VGG-11 without norm, its maps averaged to 512 features, as in FedBR (32x32x3)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fedshift.models.contract import Staged, block, image

# channels of each convolution, in widths, and whether a pool follows
LAYERS = ((1, True), (2, True), (4, False), (4, True), (8, False), (8, True), (8, False), (8, True))


class VGG11(Staged):
    """Eight convolutions (3x3, padded) with five pools by 2, global average pool.

    9,225,610 parameters for three channels and 10 classes, 9,220,480 of them before the head. The
    convolutions begin as torchvision's do, and read files of its weights (whose dense layers have
    no place here).
    """

    published = tuple(
        (rf"^features\.{k}\.", f"conv{i}.conv.")
        for i, k in enumerate((0, 3, 6, 8, 11, 13, 16, 18), 1)
    )
    left_out = (r"^classifier\.",)

    def __init__(self, shape: tuple[int, ...], classes: int, width: int = 64) -> None:
        super().__init__()
        inputs, _, _ = image(shape, "vgg11", least=32)
        self.stages = tuple(f"conv{i}" for i in range(1, len(LAYERS) + 1))
        for stage, (widths, pooled) in zip(self.stages, LAYERS):
            outputs = widths * width
            conv = nn.Conv2d(inputs, outputs, 3, padding=1)
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
            # Pooling commutes with ReLU, which has less to do behind it.
            pools = {"pool": nn.MaxPool2d(2)} if pooled else {}
            self.add_module(stage, block(conv=conv, **pools, relu=nn.ReLU()))
            inputs = outputs
        self.head = nn.Linear(inputs, classes)

    def join(self, x: Tensor) -> Tensor:
        """Global average pooling, as a mean: adaptive pooling does not compile under vmap."""
        return x.mean((2, 3))


def network(shape: tuple[int, ...], classes: int, **options: Any) -> VGG11:
    """The network for images of a shape; `options` are those of `VGG11`.

    >>> sum(p.numel() for p in network((3, 32, 32), 10).parameters())
    9225610
    """
    return VGG11(shape, classes, **options)
