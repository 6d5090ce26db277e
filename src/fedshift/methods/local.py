"""Local: every client trains alone, from the same initial model and with the same budget.

Nothing is aggregated: all tensors are kept. Scores are of each client's own model on its own data.
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
