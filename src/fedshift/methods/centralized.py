"""# Centralized: all data at one place

One party gets everybody's training data and trains on them together. It is what federations would
like to reach, and no federated method: nobody's data stay private.

## The loss

The task's own, on the pooled data. The model is scored on each client's own test data. With local
epochs it takes about as many steps a round as all clients together; with a number of local steps,
as many as one of them.

## When to use it

As a baseline, to see what not sharing data costs.

## What crosses the wire

All training data with their labels, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedshift.method import Method


@dataclass(frozen=True)
class Centralized(Method):
    """Training on everybody's data at once.

    >>> Centralized().pooled
    True
    """

    name: ClassVar[str] = "centralized"
    paper: ClassVar[str] = "a baseline: training on pooled data"
    pooled: ClassVar[bool] = True
