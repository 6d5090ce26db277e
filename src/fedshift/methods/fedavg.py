"""# FedAvg: several local steps, then the mean

Each client takes some steps on its own data, starting from the model that all share; the server
replaces that model by the mean of what comes back. It is the method that the others here change in
one place or another. The paper is McMahan, Moore, Ramage, Hampson and Agüera y Arcas,
Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.

## The loss

The task's own. With w_k, what client k makes of w_t, the server takes

    w_(t+1) = sum_k p_k w_k

where the weights p_k are equal, or follow the numbers of samples (`--weights samples`). Running
statistics of norm layers are averaged as parameters are.

## When to use it

First, as what others are measured by. With unlike data the clients drift apart between two means:
on two quadratic losses the fixed point is not the optimum of their sum (a test shows by how much).

## What crosses the wire

The model, both ways, and nothing else.
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
