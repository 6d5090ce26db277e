"""Two 5x5 convolutions and a layer of 512 units: the CNN of McMahan et al. (2017)."""

from __future__ import annotations

from torch import nn

from fedshift.models.contract import Staged, block, image


class FedAvgCNN(Staged):
    """conv 32, conv 64 (5x5, no padding, each max-pooled by 2), fc 512.

    582,026 parameters for 1x28x28 and 10 classes. The 1,663,370 of the paper need padding, which
    its text does not mention; the field's simulators and this network leave it out.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = image(shape, "fedavg-cnn", least=16)
        self.stages = ("conv1", "conv2", "fc1")
        self.conv1 = _convolution(channels, 32)
        self.conv2 = _convolution(32, 64)
        flat = 64 * _side(height) * _side(width)
        self.fc1 = block(flatten=nn.Flatten(), linear=nn.Linear(flat, 512), relu=nn.ReLU())
        self.head = nn.Linear(512, classes)


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    # Pooling commutes with ReLU, which has less to do behind it.
    return block(conv=nn.Conv2d(inputs, outputs, 5), pool=nn.MaxPool2d(2), relu=nn.ReLU())


def _side(pixels: int) -> int:
    """What two convolutions (-4 each) and two pools leave of a side."""
    return ((pixels - 4) // 2 - 4) // 2


def network(shape: tuple[int, ...], classes: int) -> FedAvgCNN:
    """The network for images of a shape.

    >>> sum(p.numel() for p in network((1, 28, 28), 10).parameters())
    582026
    """
    return FedAvgCNN(shape, classes)
