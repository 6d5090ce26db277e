"""LeNet-5 of LeCun et al. (1998), with ReLU and max pooling as it is used today."""

from __future__ import annotations

from torch import nn

from fedshift.models.contract import Staged, block, image


class LeNet(Staged):
    """conv 6, conv 16 (5x5, no padding, each max-pooled by 2), fc 120, fc 84.

    61,706 parameters for 1x32x32 and 10 classes, 44,426 for 1x28x28.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = image(shape, "lenet", least=16)
        self.stages = ("conv1", "conv2", "fc1", "fc2")
        self.conv1 = _convolution(channels, 6)
        self.conv2 = _convolution(6, 16)
        flat = 16 * _side(height) * _side(width)
        self.fc1 = block(flatten=nn.Flatten(), linear=nn.Linear(flat, 120), relu=nn.ReLU())
        self.fc2 = block(linear=nn.Linear(120, 84), relu=nn.ReLU())
        self.head = nn.Linear(84, classes)


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    # Pooling commutes with ReLU, which has less to do behind it.
    return block(conv=nn.Conv2d(inputs, outputs, 5), pool=nn.MaxPool2d(2), relu=nn.ReLU())


def _side(pixels: int) -> int:
    """What two convolutions (-4 each) and two pools leave of a side."""
    return ((pixels - 4) // 2 - 4) // 2


def network(shape: tuple[int, ...], classes: int) -> LeNet:
    """The network for images of a shape.

    >>> sum(p.numel() for p in network((1, 32, 32), 10).parameters())
    61706
    """
    return LeNet(shape, classes)
