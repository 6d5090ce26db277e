"""Small federations in the shape of a paper's, made of the embedded digits.

They show that a recipe runs, and nothing about scores: scikit-learn's digits, enlarged, dealt to as
many clients as the case has, with their names.
"""

from __future__ import annotations

import torch.nn.functional as F
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import Tensor, from_numpy

from fedshift.data.augment import Pipeline
from fedshift.data.partition import evenly
from fedshift.errors import BadData
from fedshift.federation import Client, Federation, Samples
from fedshift.papers.experiment import Case

SHAPES = {"fedgenp": (1, 28, 28), "rotated-mnist": (1, 28, 28), "digits": (3, 32, 32)}
CLIENTS = {"fedgenp": 20, "rotated-mnist": 10}
TRAIN = 32  # of a client's samples


def federation(case: Case) -> Federation:
    """The stand-in of a case, where it has one."""
    base, _, variant = case.data.partition("/")
    known = next((n for n in SHAPES if variant.startswith(n) or base == n), None)
    if known is None:
        raise BadData(
            f"'{case.data}' is not there, and nothing small stands in for it: get the data"
        )
    x, y = enlarged(SHAPES[known])
    names = [r.partition(":")[2] for r in case.columns.values() if r.startswith(("client", "uns"))]
    names = names or [f"client{k:02d}" for k in range(CLIENTS.get(known, 4))]
    clients = []
    for name, part in zip(names, evenly(y, len(names), seed=0)):
        train, test = part[:TRAIN], part[TRAIN:]
        clients.append(
            Client(
                name,
                Samples(x[train], y[train]),
                Samples(x[test], y[test]),
                Samples(x[test], y[test]),
            )
        )
    return Federation(
        f"stand-in of {case.data}",
        tuple(clients),
        tuple("0123456789"),
        Pipeline(mean=(0.5,) * x.shape[1], std=(0.5,) * x.shape[1]),
    )


def enlarged(shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """All digits as uint8 of a shape, and their labels."""
    found = load_digits()
    small = from_numpy(found.images).float()[:, None] * (255 / 16)
    x = F.interpolate(small, size=shape[1:], mode="bilinear", align_corners=False)
    return x.round().byte().expand(-1, shape[0], -1, -1).contiguous(), from_numpy(found.target)
