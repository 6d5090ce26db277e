"""The digits of the five sites somewhere on a larger sheet, to be told from it pixel by pixel."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from fedshift import keys
from fedshift.data import warp
from fedshift.data.augment import Pipeline
from fedshift.data.digits import SITES, askew, digits
from fedshift.data.partition import evenly, split
from fedshift.data.source import describe
from fedshift.federation import Client, Federation, Samples

NAME = "shifted-digit-masks"
SHEET = 32
COUNT = 120  # digits of a site
SHARES = (0.25, 0.25, 0.5)
INK = 128  # from here on a pixel counts as ink
RECOMMENDED = {
    "model": "unet-small",
    "rounds": 10,
    "epochs": 2,
    "batch": 8,
    "lr": 0.3,
    "schedule": "cosine",
    "weights": "uniform",
}


def shifted_digit_masks(seed: int = 0) -> Federation:
    """Five sites with 120 real digits each on sheets of 32 x 32 pixels; the mask is the ink.

    The sites are those of `shifted_digits`: what differs is how a sheet was recorded, from black on
    white to white on black. Each digit lies somewhere else on its sheet.

    Args:
        seed: which digit goes to which site and split, where it lies, and the noise.

    >>> fed = shifted_digit_masks()
    >>> fed.classes, fed.clients[0].train.x.shape, fed.clients[0].train.y.shape
    (('paper', 'ink'), torch.Size([30, 1, 32, 32]), torch.Size([30, 32, 32]))
    """
    x, y = digits()
    parts = evenly(y, len(SITES), seed=keys.fold(seed, NAME))
    clients = []
    for (name, record), index in zip(SITES.items(), parts):
        key = keys.fold(seed, NAME, name)
        chosen = index[keys.permutation(keys.as_tensor(key), len(index))[:COUNT]]
        each = keys.bits(keys.as_tensor(key), (COUNT,))
        sheets = _placed(x[chosen], each)
        ink = askew(sheets, each) if name == "camera" else sheets
        masks = (ink[:, 0] >= INK).to(ink.dtype)
        clients.append(Client(name, *split(Samples(record(sheets, each), masks), SHARES, seed=key)))
    return Federation(
        name=NAME,
        clients=tuple(clients),
        classes=("paper", "ink"),
        pipeline=Pipeline(mean=(0.5,), std=(0.5,)),
        task="segmentation",
        recommended=RECOMMENDED,
        source=describe(NAME, seed=seed),
    )


def _placed(x: Tensor, each: Tensor) -> Tensor:
    """Digits [N, 1, h, w] on black sheets, each moved from the middle at random."""
    room = (SHEET - x.shape[-1]) // 2
    move = keys.integers(keys.fold_in(each, "place"), 2 * room + 1, (2,)) - room
    return warp.shift(F.pad(x, (room,) * 4), move[:, 0], move[:, 1], room)
