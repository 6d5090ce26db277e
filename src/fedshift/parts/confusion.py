"""Losses that are lowest where a classifier is least sure of the label it should give.

All take logits [B, classes] and labels [B] and give a scalar to descend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedshift.parts.labels import one_hot

_TINY = 1e-12


def entropy(logits: Tensor) -> Tensor:
    """The mean entropy of the softmax, in nats.

    >>> entropy(torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]))
    tensor(0.9655)
    """
    log_p = torch.log_softmax(logits, dim=1)
    return -(log_p.exp() * log_p).sum(dim=1).mean()


def negative_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Least where all classes are equally likely; the labels have no part in it.

    >>> negative_entropy(torch.zeros(1, 3), torch.tensor([0]))
    tensor(-1.0986)
    """
    return -entropy(logits)


def non_saturating(logits: Tensor, y: Tensor, smoothing: float = 0.1) -> Tensor:
    """-sum_c t_c log(1 - p_c) with smoothed labels t: least where the label's class is unlikely.

    >>> non_saturating(torch.zeros(1, 2), torch.tensor([0]))
    tensor(0.6931)
    """
    classes = logits.shape[1]
    t = (1.0 - smoothing) * one_hot(y, classes, logits) + smoothing / classes
    return -(t * torch.log(1.0 - logits.softmax(dim=1) + _TINY)).sum(dim=1).mean()


CONFUSIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "entropy": negative_entropy,
    "non-saturating": non_saturating,
}
