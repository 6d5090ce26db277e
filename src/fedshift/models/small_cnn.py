"""Three small convolutions with batch norm, pooled globally: the compact default."""

from __future__ import annotations

from torch import Tensor, nn

from fedshift.models.contract import Staged, block, image


class SmallCNN(Staged):
    """conv 16, 32, 64 (3x3, padded, norm; the first two max-pooled by 2), global average pool.

    24,058 parameters for one channel and 10 classes, whatever the size of the image.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, _, _ = image(shape, "small-cnn", least=8)
        self.stages = ("conv1", "conv2", "conv3")
        self.conv1 = _convolution(channels, 16, pool=True)
        self.conv2 = _convolution(16, 32, pool=True)
        self.conv3 = _convolution(32, 64, pool=False)
        self.head = nn.Linear(64, classes)

    def join(self, x: Tensor) -> Tensor:
        """Global average pooling, as a mean: adaptive pooling does not compile under vmap."""
        return x.mean((2, 3))


def _convolution(inputs: int, outputs: int, pool: bool) -> nn.Sequential:
    # No bias: the norm that follows takes the mean away.
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    # Pooling commutes with ReLU, which has less to do behind it.
    pools = {"pool": nn.MaxPool2d(2)} if pool else {}
    return block(conv=conv, norm=nn.BatchNorm2d(outputs), **pools, relu=nn.ReLU())


def network(shape: tuple[int, ...], classes: int) -> SmallCNN:
    """The network for images of a shape.

    >>> sum(p.numel() for p in network((1, 16, 16), 10).parameters())
    24058
    """
    return SmallCNN(shape, classes)
