"""AlexNet: with norm and a head of 1024 units as in FedFA, and the one of ImageNet."""

from __future__ import annotations

from typing import Any

from torch import nn

from fedshift.models.contract import Staged, block, image
from fedshift.models.norms import norm as norm_of

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "alexnet": (
        "AlexNet as trained on ImageNet: no norm, two layers of 4096 units with dropout.",
        {"norm": "none", "width": 4096, "dropout": 0.5},
    ),
    "alexnet-bn": (
        "AlexNet with batch norm and two layers of 1024 units, as in FedFA (256x256).",
        {"norm": "batch"},
    ),
    "alexnet-gn": ("As alexnet-bn, with group norm.", {"norm": "group"}),
    "alexnet-ln": ("As alexnet-bn, with layer norm.", {"norm": "layer"}),
}


class AlexNet(Staged):
    """Five convolutions (the first, second and last max-pooled 3/2), 6x6 means, two dense layers.

    With batch norm 12,974,154 parameters for 10 classes, whatever the size of the image: FedFA's.
    The network of FedBN has `width=4096` (57,063,498). Without norm, with 4096 units and dropout,
    it is torchvision's (61,100,840 for 1000 classes), which reads files of its weights.
    """

    published = (
        *((rf"^features\.{k}\.", f"conv{i}.conv.") for i, k in enumerate((0, 3, 6, 8, 10), 1)),
        (r"^classifier\.1\.", "fc1.linear."),
        (r"^classifier\.4\.", "fc2.linear."),
        (r"^classifier\.6\.", "head."),
    )

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        norm: str = "batch",
        width: int = 1024,
        dropout: float = 0.0,
        groups: int = 32,
    ) -> None:
        super().__init__()
        channels, _, _ = image(shape, "alexnet", least=63)

        def convolution(inputs: int, outputs: int, conv: dict[str, int], pool: bool) -> nn.Module:
            # Pooling commutes with ReLU, which has less to do behind it.
            return block(
                conv=nn.Conv2d(inputs, outputs, **conv),  # type: ignore[arg-type]
                **norm_of(norm, outputs, groups),
                **({"pool": nn.MaxPool2d(3, stride=2)} if pool else {}),
                relu=nn.ReLU(),
            )

        def dense(inputs: int) -> dict[str, nn.Module]:
            return {
                **({"dropout": nn.Dropout(dropout)} if dropout else {}),
                "linear": nn.Linear(inputs, width),
                **norm_of(norm, width, groups, maps=False),
                "relu": nn.ReLU(),
            }

        small = {"kernel_size": 3, "padding": 1}
        self.stages = ("conv1", "conv2", "conv3", "conv4", "conv5", "fc1", "fc2")
        first = {"kernel_size": 11, "stride": 4, "padding": 2}
        self.conv1 = convolution(channels, 64, first, pool=True)
        self.conv2 = convolution(64, 192, {"kernel_size": 5, "padding": 2}, pool=True)
        self.conv3 = convolution(192, 384, small, pool=False)
        self.conv4 = convolution(384, 256, small, pool=False)
        self.conv5 = convolution(256, 256, small, pool=True)
        grid = {"average": nn.AdaptiveAvgPool2d(6), "flatten": nn.Flatten()}
        self.fc1 = block(**grid, **dense(256 * 6 * 6))
        self.fc2 = block(**dense(width))
        self.head = nn.Linear(width, classes)


def network(shape: tuple[int, ...], classes: int, **options: Any) -> AlexNet:
    """The network for images of a shape; `options` are those of `AlexNet`.

    >>> network((3, 256, 256), 10).stages[-2:]
    ('fc1', 'fc2')
    """
    return AlexNet(shape, classes, **options)
