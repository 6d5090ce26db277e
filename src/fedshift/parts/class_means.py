"""Moving means of the embeddings of each class, held as buffers of an attached module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedshift.parts.labels import one_hot


def batch_means(u: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The mean of each class in a batch [C, D] (zero where there is none), and the counts [C].

    >>> batch_means(torch.tensor([[2.0], [4.0]]), torch.tensor([1, 1]), 2)
    (tensor([[0.],
            [3.]]), tensor([0., 2.]))
    """
    member = one_hot(y, classes, u)
    count = member.sum(dim=0)
    with torch.autocast(u.device.type, enabled=False):  # a sum, not a layer of a network
        total = member.T @ u
    return total / count.clamp_min(1.0)[:, None], count


RULES = ("masked", "warm", "shrinking")


class ClassMeans(nn.Module):
    """Class means that move with every batch in train mode: m_c <- (1 - l) m_c + l mean_c.

    They start at zero.

    Args:
        classes, width: of the means [classes, width].
        rule: "masked": means of classes that a batch lacks stay as they are. "warm": so too, and
            the first sighting of a class sets its mean, where otherwise it would move it to l times
            the batch's. "shrinking": means of absent classes move as if their batch mean were zero.

    >>> means = ClassMeans(2, 1)
    >>> means(torch.tensor([[1.0]]), torch.tensor([0]), 0.3)
    tensor([[0.3000],
            [0.0000]])
    """

    means: Tensor
    seen: Tensor

    def __init__(self, classes: int, width: int, rule: str = "masked") -> None:
        super().__init__()
        self.rule = rule
        self.register_buffer("means", torch.zeros(classes, width))
        self.register_buffer("seen", torch.zeros(classes))

    def forward(
        self, u: Tensor | None = None, y: Tensor | None = None, rate: float | Tensor = 1.0
    ) -> Tensor:
        """The means; given a batch in train mode, they first move towards its means at `rate`."""
        if self.training and u is not None and y is not None:
            found, count = batch_means(u.detach().to(self.means.dtype), y, len(self.means))
            here = (count > 0).to(self.means.dtype)
            step = (torch.ones_like(here) if self.rule == "shrinking" else here) * rate
            if self.rule == "warm":
                step = torch.where((here > 0) & (self.seen == 0), torch.ones_like(step), step)
            self.means.copy_(self.means + step[:, None] * (found - self.means))
            self.seen.copy_(torch.maximum(self.seen, here))
        return self.means
