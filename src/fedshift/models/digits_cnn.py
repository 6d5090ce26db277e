"""The six-layer CNN with batch norm of the five-digits benchmark, as in FRAug (32x32x3)."""

from __future__ import annotations

from torch import nn

from fedshift.models.contract import Staged, block, image


class DigitsCNN(Staged):
    """conv 64, 64, 128 (5x5, padded; the first two max-pooled 3/2), fc 2048, fc 512, all with norm.

    18,151,370 parameters for 3x32x32 and 10 classes, which is FRAug's network. FedBN's first one
    differs (28x28 inputs, pools of 2/2, 14,219,210 parameters).
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = image(shape, "digits-cnn", least=16)
        self.stages = ("conv1", "conv2", "conv3", "fc1", "fc2")
        self.conv1 = _convolution(channels, 64, pool=True)
        self.conv2 = _convolution(64, 64, pool=True)
        self.conv3 = _convolution(64, 128, pool=False)
        flat = 128 * _side(height) * _side(width)
        self.fc1 = block(flatten=nn.Flatten(), **_dense(flat, 2048))
        self.fc2 = block(**_dense(2048, 512))
        self.head = nn.Linear(512, classes)


def _convolution(inputs: int, outputs: int, pool: bool) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, 5, padding=2)
    # Pooling commutes with ReLU, which has less to do behind it.
    pools = {"pool": nn.MaxPool2d(3, stride=2, padding=1)} if pool else {}
    return block(conv=conv, norm=nn.BatchNorm2d(outputs), **pools, relu=nn.ReLU())


def _dense(inputs: int, outputs: int) -> dict[str, nn.Module]:
    return {
        "linear": nn.Linear(inputs, outputs),
        "norm": nn.BatchNorm1d(outputs),
        "relu": nn.ReLU(),
    }


def _side(pixels: int) -> int:
    """What two pools, each halving and rounding up, leave of a side."""
    return ((pixels + 1) // 2 + 1) // 2


def network(shape: tuple[int, ...], classes: int) -> DigitsCNN:
    """The network for images of a shape.

    >>> sum(p.numel() for p in network((3, 32, 32), 10).parameters())
    18151370
    """
    return DigitsCNN(shape, classes)
