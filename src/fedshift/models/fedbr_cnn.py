"""Four convolutions with group norm behind the ReLU, pooled globally: FedBR's for MNIST (28x28)."""

from __future__ import annotations

from torch import Tensor, nn

from fedshift.models.contract import Staged, block, image


class FedBRCNN(Staged):
    """conv 64, 128 (stride 2), 128, 128 (3x3, padded), global average pool.

    371,850 parameters for one channel and 10 classes, 370,560 of them before the head.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, _, _ = image(shape, "fedbr-cnn", least=8)
        self.stages = ("conv1", "conv2", "conv3", "conv4")
        self.conv1 = _convolution(channels, 64)
        self.conv2 = _convolution(64, 128, stride=2)
        self.conv3 = _convolution(128, 128)
        self.conv4 = _convolution(128, 128)
        self.head = nn.Linear(128, classes)

    def join(self, x: Tensor) -> Tensor:
        """Global average pooling, as a mean: adaptive pooling does not compile under vmap."""
        return x.mean((2, 3))


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1)
    return block(conv=conv, relu=nn.ReLU(), norm=nn.GroupNorm(8, outputs))


def network(shape: tuple[int, ...], classes: int) -> FedBRCNN:
    """The network for images of a shape.

    >>> sum(p.numel() for p in network((1, 28, 28), 10).parameters())
    371850
    """
    return FedBRCNN(shape, classes)
