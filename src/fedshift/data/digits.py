"""Real handwritten digits as five sites record them: scanner, camera, blackboard, archive, fax."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedshift import keys
from fedshift.data import shifts
from fedshift.data.augment import Pipeline
from fedshift.data.partition import evenly, split
from fedshift.data.source import describe
from fedshift.federation import Client, Federation, Samples

NAME = "shifted-digits"
SIZE = 16
SHARES = (0.16, 0.14, 0.7)  # few enough to train on that a site gains from the others
RECOMMENDED = {
    "model": "small-cnn",
    "rounds": 24,
    "epochs": 3,
    "batch": 16,
    "lr": 0.3,
    "schedule": "cosine",
    "weights": "uniform",
}


def scanner(x: Tensor, key: Tensor) -> Tensor:
    """Dark ink on clean white paper."""
    return shifts.noise(shifts.invert(x), 0.02, key)


def askew(x: Tensor, key: Tensor) -> Tensor:
    """As paper in the hand is held."""
    return shifts.rotate(x, -15.0, 10.0, key)


def camera(x: Tensor, key: Tensor) -> Tensor:
    """Paper in the hand: askew, lit from one side, a little noisy."""
    x = askew(x, key)
    x = shifts.levels(shifts.invert(x), 0.15, 0.95)
    return shifts.noise(shifts.lighting(x, 0.3, key), 0.03, key)


def blackboard(x: Tensor, key: Tensor) -> Tensor:
    """Chalk on a badly wiped board."""
    return shifts.noise(shifts.texture(x, 0.3, 4, key), 0.03, key)


def archive(x: Tensor, key: Tensor) -> Tensor:
    """Microfilm: faded, out of focus, grainy."""
    x = shifts.levels(shifts.blur(shifts.invert(x), 0.8), 0.15, 0.85)
    return shifts.noise(x, 0.03, key)


def fax(x: Tensor, key: Tensor) -> Tensor:
    """Two tones, with transmission errors."""
    x = shifts.threshold(shifts.invert(x), 0.5)
    return shifts.specks(x, 0.03, key)


SITES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    site.__name__: site for site in (scanner, camera, blackboard, archive, fax)
}


def shifted_digits(seed: int = 0) -> Federation:
    """Five sites with about 360 real digits each, 16 x 16 pixels, the same mix of classes.

    The digits are the 1797 that come with scikit-learn. Every digit belongs to one site only; what
    differs between sites is how it was recorded.

    Args:
        seed: which digit goes to which site and split, and the noise.

    >>> fed = shifted_digits()
    >>> fed.names
    ('scanner', 'camera', 'blackboard', 'archive', 'fax')
    >>> [len(c.train) for c in fed.clients]
    [58, 58, 57, 57, 57]
    """
    x, y = digits()
    parts = evenly(y, len(SITES), seed=keys.fold(seed, NAME))
    clients = []
    for (name, record), index in zip(SITES.items(), parts):
        key = keys.fold(seed, NAME, name)
        images = record(x[index], keys.bits(keys.as_tensor(key), (len(index),)))
        clients.append(Client(name, *split(Samples(images, y[index]), SHARES, seed=key)))
    return Federation(
        name=NAME,
        clients=tuple(clients),
        classes=tuple("0123456789"),
        pipeline=Pipeline(mean=(0.5,), std=(0.5,)),
        recommended=RECOMMENDED,
        source=describe(NAME, seed=seed),
    )


def digits() -> tuple[Tensor, Tensor]:
    """White on black, uint8 [1797, 1, 16, 16], and the labels."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    data, target = load_digits(return_X_y=True)
    small = torch.from_numpy(data).reshape(-1, 1, 8, 8) / 16.0
    big = F.interpolate(small, size=(SIZE, SIZE), mode="bilinear", align_corners=False)
    return torch.round(big * 255.0).to(torch.uint8), torch.from_numpy(target).to(torch.int64)
