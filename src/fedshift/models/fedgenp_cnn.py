"""Small CNNs that end in 32 features, as in FedGenP."""

from __future__ import annotations

from typing import Any

from torch import nn

from fedshift.models.contract import Staged, block, image

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedgenp-cnn": (
        "Two convolutions with batch norm and 32 features, as in FedGenP on MNIST (28x28).",
        {"channels": (6, 16), "pool": False},
    ),
    "fedgenp-cnn-celeba": (
        "Three pooled convolutions with batch norm and 32 features, as in FedGenP (84x84).",
        {"channels": (16, 32, 64), "pool": True},
    ),
}


class FedGenPCNN(Staged):
    """Convolutions (3x3, stride 2, padded), each max-pooled by 2 or not, then fc 32 without ReLU.

    26,434 parameters for 1x28x28 and 10 classes (26,962 for 26); pooled, with 16, 32 and 64
    channels, 25,954 for 3x84x84 and 2 classes, where 64 values reach the dense layer (the paper
    says 784, which its own strides do not give).
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        channels: tuple[int, ...] = (6, 16),
        pool: bool = False,
        latent: int = 32,
    ) -> None:
        super().__init__()
        name = "fedgenp-cnn-celeba" if pool else "fedgenp-cnn"
        inputs, height, width = image(shape, name, least=53 if pool else 8)
        convolutions = [f"conv{i}" for i in range(1, len(channels) + 1)]
        for stage, outputs in zip(convolutions, channels):
            self.add_module(stage, _convolution(inputs, outputs, pool))
            inputs = outputs
            height, width = _side(height, pool), _side(width, pool)
        self.stages = (*convolutions, "fc")
        self.fc = block(flatten=nn.Flatten(), linear=nn.Linear(inputs * height * width, latent))
        self.head = nn.Linear(latent, classes)


def _convolution(inputs: int, outputs: int, pool: bool) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1)
    # Pooling commutes with ReLU, which has less to do behind it.
    pools = {"pool": nn.MaxPool2d(2)} if pool else {}
    return block(conv=conv, norm=nn.BatchNorm2d(outputs), **pools, relu=nn.ReLU())


def _side(pixels: int, pool: bool) -> int:
    """What a convolution (halves, rounding up) and a pool (halves, rounding down) leave."""
    return (pixels + 1) // 2 // (2 if pool else 1)


def network(shape: tuple[int, ...], classes: int, **options: Any) -> FedGenPCNN:
    """The network for images of a shape; `options` are those of `FedGenPCNN`.

    >>> sum(p.numel() for p in network((1, 28, 28), 10).parameters())
    26434
    """
    return FedGenPCNN(shape, classes, **options)
