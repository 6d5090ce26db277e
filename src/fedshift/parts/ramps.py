"""Weights that grow over the rounds of a run, as 0-d tensors of the round."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def exponential(round: Tensor, rounds: int, rate: float) -> Tensor:
    """exp(rate (r - R)): reaches 1 at the end, starts at exp(-rate R) and not at 0.

    >>> exponential(torch.tensor(100.0), 200, 0.01)
    tensor(0.3679)
    """
    return torch.exp(rate * (round - rounds))


def gaussian(round: Tensor, rounds: int, rate: float) -> Tensor:
    """exp(-5 (1 - r/R)^2), the usual ramp of semi-supervised learning; `rate` has no part in it.

    >>> gaussian(torch.tensor(100.0), 200, 0.01)
    tensor(0.2865)
    """
    return torch.exp(-5.0 * (1.0 - (round / rounds).clamp_max(1.0)).square())


def hyperbolic(round: Tensor, rounds: int, rate: float) -> Tensor:
    """1 - 1 / (rate r + 1): starts at 0 and does not look at how many rounds there will be.

    >>> hyperbolic(torch.tensor(100.0), 200, 0.01)
    tensor(0.5000)
    """
    return 1.0 - 1.0 / (rate * round + 1.0)


def half(round: Tensor, rounds: int, rate: float) -> Tensor:
    """One half, always.

    >>> half(torch.tensor(100.0), 200, 0.01)
    tensor(0.5000)
    """
    return torch.full_like(round, 0.5)


RAMPS: Mapping[str, Callable[[Tensor, int, float], Tensor]] = {
    "exponential": exponential,
    "gaussian": gaussian,
    "hyperbolic": hyperbolic,
    "half": half,
}
