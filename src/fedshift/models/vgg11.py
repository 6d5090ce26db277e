"""VGG-11 without norm, its maps averaged to 512 features, as in FedBR (32x32x3)."""

from __future__ import annotations

from torch import Tensor, nn

from fedshift.models.contract import Staged, block, image

# output channels of each convolution, and whether a pool follows
LAYERS = (
    (64, True),
    (128, True),
    (256, False),
    (256, True),
    (512, False),
    (512, True),
    (512, False),
    (512, True),
)


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

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        inputs, _, _ = image(shape, "vgg11", least=32)
        self.stages = tuple(f"conv{i}" for i in range(1, len(LAYERS) + 1))
        for stage, (outputs, pooled) in zip(self.stages, LAYERS):
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


def network(shape: tuple[int, ...], classes: int) -> VGG11:
    """The network for images of a shape.

    >>> sum(p.numel() for p in network((3, 32, 32), 10).parameters())
    9225610
    """
    return VGG11(shape, classes)
