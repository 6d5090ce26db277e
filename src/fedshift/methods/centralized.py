"""Centralized: all data at one place, the line that federations aim at.

It changes no hook: the run pools the clients' training data into one client and scores the model on
each client's own test data. Nobody's data stay private here. With local epochs it takes about as
many steps a round as all clients together; with a number of local steps, as many as one of them.
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
