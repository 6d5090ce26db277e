"""Two hidden layers of 200 units, any input shape: the 2NN of McMahan et al. (2017)."""

from __future__ import annotations

import math

from torch import nn

from fedshift.models.contract import Staged, block

HIDDEN = 200


class MLP(Staged):
    """flatten, then fc1 and fc2 with ReLU; 199,210 parameters for 1x28x28 and 10 classes."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.stages = ("fc1", "fc2")
        width = math.prod(shape)
        self.fc1 = block(flatten=nn.Flatten(), linear=nn.Linear(width, HIDDEN), relu=nn.ReLU())
        self.fc2 = block(linear=nn.Linear(HIDDEN, HIDDEN), relu=nn.ReLU())
        self.head = nn.Linear(HIDDEN, classes)


def network(shape: tuple[int, ...], classes: int) -> MLP:
    """The network for samples of a shape.

    >>> network((3, 8, 8), 4).stages
    ('fc1', 'fc2')
    """
    return MLP(shape, classes)
