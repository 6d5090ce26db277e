"""FedAvg (McMahan et al., AISTATS 2017): several local steps, then the mean of the models.

Nothing beyond the model travels. With unlike data the clients drift apart between two means: on two
quadratic losses the fixed point is not the optimum of their sum (a test shows by how much).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedshift.method import Method


@dataclass(frozen=True)
class FedAvg(Method):
    """The weighted mean of locally trained models.

    >>> FedAvg().name
    'fedavg'
    """

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = (
        "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized "
        "Data, AISTATS 2017"
    )
