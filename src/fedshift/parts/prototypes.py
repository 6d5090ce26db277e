"""Prototypes: the mean feature of each class that a client has.

`over_data` takes them in a pass of their own when training is over; `ClassSums` gathers them on the
way, from the training passes of the last epoch, as some released codes do. Both give sums and
counts [classes, width], [classes], of which `means` makes prototypes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedshift.method import Ctx, Data
from fedshift.parts.class_means import batch_means
from fedshift.parts.labels import hard, one_hot
from fedshift.tree import Tree

if TYPE_CHECKING:
    from fedshift.net import Net

GATHERED = ("after", "last-epoch")


def means(total: Tensor, count: Tensor) -> Tensor:
    """Prototypes from sums and counts; zero where a class is absent.

    >>> means(torch.tensor([[6.0], [0.0]]), torch.tensor([3.0, 0.0]))
    tensor([[2.],
            [0.]])
    """
    return total / count.clamp_min(1.0)[:, None]


def over_data(
    net: Net, data: Data, classes: int, width: int, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Sums of features and counts of each class, over all samples, by the model as it is."""

    def add(acc: Tree, x: Tensor, y: Tensor, mask: Tensor) -> Tree:
        z = net.features(x).to(like.dtype)
        member = one_hot(hard(y), classes, like) * mask.to(like.dtype)[:, None]
        with torch.autocast(z.device.type, enabled=False):  # a sum, not a layer of a network
            total = member.T @ z
        return {"total": acc["total"] + total, "count": acc["count"] + member.sum(dim=0)}

    start = {"total": like.new_zeros(classes, width), "count": like.new_zeros(classes)}
    found = data.fold(add, start)
    return found["total"], found["count"]


class ClassSums(nn.Module):
    """Sums of features and counts of each class, gathered in train mode while `now` holds.

    >>> sums = ClassSums(2, 1)
    >>> for now in (False, True):
    ...     sums(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0]), torch.tensor(now))
    >>> sums.total, sums.count
    (tensor([[4.],
            [0.]]), tensor([2., 0.]))
    """

    total: Tensor
    count: Tensor

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(classes, width))
        self.register_buffer("count", torch.zeros(classes))

    def forward(self, z: Tensor, y: Tensor, now: Tensor) -> None:
        """Add a batch, if it is time."""
        if self.training:
            found, count = batch_means(z.detach().to(self.total.dtype), hard(y), len(self.count))
            count = count * now.to(count.dtype)
            self.total.copy_(self.total + found * count[:, None])
            self.count.copy_(self.count + count)


def in_last_epoch(ctx: Ctx) -> Tensor:
    """Whether a local step is of the trip's last epoch; always, where steps do not fill one."""
    epoch = torch.div(
        ctx.samples + (ctx.protocol.batch - 1), ctx.protocol.batch, rounding_mode="floor"
    )
    return ctx.step >= ctx.steps - epoch
