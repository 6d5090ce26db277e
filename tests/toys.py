"""Small federations and networks that tests share: seconds are for training, not for tests."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedshift import keys
from fedshift.data.augment import Pipeline
from fedshift.federation import Client, Federation, Samples
from fedshift.models import Staged
from fedshift.models.unet import UNet

CLASSES = 3


def samples(n: int, key: int, shift: float = 0.0, shape: tuple[int, ...] = (1, 6, 6)) -> Samples:
    """Noisy pictures of one bright patch per class, brightened by the client's shift."""
    k = keys.as_tensor(key)
    y = torch.arange(n) % CLASSES
    x = 0.5 * keys.uniform(k, (n, *shape), torch.float64) + shift
    if len(shape) == 3:
        for c in range(CLASSES):
            x[y == c, :, 2 * c : 2 * c + 2] += 0.7
    else:
        x[torch.arange(n), y] += 1.0
    return Samples(x, y)


def federation(
    sizes: tuple[int, ...] = (17, 9, 12),
    shape: tuple[int, ...] = (1, 6, 6),
    pipeline: Pipeline | None = None,
) -> Federation:
    """Clients "a", "b", … of uneven size, each a little brighter than the last."""
    clients = []
    for k, n in enumerate(sizes):
        name = chr(ord("a") + k)
        parts = [
            samples(m, keys.fold(1, name, split), 0.3 * k, shape)
            for split, m in (("train", n), ("val", 6), ("test", 9))
        ]
        clients.append(Client(name, *parts))
    return Federation(
        "toy", tuple(clients), tuple("xyz"[:CLASSES]), pipeline=pipeline or Pipeline(), source=""
    )


class ToyNet(Staged):
    """A convolution with batch norm and dropout, and a linear head."""

    stages = ("conv", "hidden")

    def __init__(self, dropout: float = 0.2, norm: bool = True) -> None:
        super().__init__()
        middle = [nn.BatchNorm2d(4)] if norm else []
        self.conv = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), *middle, nn.ReLU(), nn.MaxPool2d(2)
        )
        self.hidden = nn.Sequential(nn.Flatten(), nn.Dropout(dropout), nn.Linear(36, 8), nn.Tanh())
        self.head = nn.Linear(8, CLASSES)


def patches(
    sizes: tuple[int, ...] = (7, 4, 5), pipeline: Pipeline | None = None, metric: str = ""
) -> Federation:
    """Clients "a", "b", … whose pictures have a bright patch somewhere, which is to be found."""
    clients = []
    for k, n in enumerate(sizes):
        name = chr(ord("a") + k)
        parts = []
        for split, m in (("train", n), ("val", 2), ("test", 3)):
            x = keys.uniform(keys.as_tensor(keys.fold(1, name, split)), (m, 1, 8, 8), torch.float64)
            y = torch.zeros(m, 8, 8, dtype=torch.uint8)
            for i in range(m):
                y[i, i % 4 : i % 4 + 3, i % 3 : i % 3 + 4] = 1
            parts.append(Samples(0.3 * x + 0.3 * k + 0.7 * y[:, None], y))
        clients.append(Client(name, *parts))
    return Federation(
        "patches",
        tuple(clients),
        ("back", "front"),
        pipeline or Pipeline(),
        task="segmentation",
        metric=metric,
    )


def toy_unet(shape: tuple[int, ...], classes: int) -> UNet:
    """The network for them."""
    return UNet(shape, classes, width=4, levels=2)


def largest_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The largest absolute difference over tensors of the same names."""
    assert set(a) == set(b), set(a) ^ set(b)
    return max(
        [(a[n].double() - b[n].double()).abs().max().item() for n in a if a[n].numel()], default=0.0
    )
