"""# Local: every client for itself

Every client trains alone, from the same initial model and with the same budget as in a federation.
It is what taking part has to be better than.

## The loss

The task's own. Nothing is aggregated: all tensors are kept.

## When to use it

As a baseline, and in earnest where clients have plenty of data. Scores are of each client's own
model on its own data; for a client that never took part there is no model.

## What crosses the wire

Nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedshift.method import Method, Scope


@dataclass(frozen=True)
class Local(Method):
    """No federation at all: the line to beat.

    >>> Local().view
    'personal'
    """

    name: ClassVar[str] = "local"
    paper: ClassVar[str] = "a baseline: training without any exchange"
    view: ClassVar[str] = "personal"

    def scope(self, name: str, module: nn.Module) -> Scope:
        """Everything is kept."""
        return Scope("kept")
