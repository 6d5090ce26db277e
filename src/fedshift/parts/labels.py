"""Class labels: soft and hard, how often each occurs, draws among those that do, cycles."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift import keys
from fedshift.method import Data
from fedshift.tree import Tree


def one_hot(y: Tensor, classes: int, like: Tensor) -> Tensor:
    """Labels [B] as rows of zeros and a one, in the type of `like`; soft labels stay as they are.

    >>> one_hot(torch.tensor([1]), 3, torch.zeros(1))
    tensor([[0., 1., 0.]])
    """
    return y if y.is_floating_point() else F.one_hot(y, classes).to(like.dtype)


def hard(y: Tensor) -> Tensor:
    """Labels as whole numbers: of soft labels [B, classes], the one of the largest weight.

    >>> hard(torch.tensor([[0.3, 0.7]]))
    tensor([1])
    """
    return y.argmax(dim=1) if y.is_floating_point() else y


def class_counts(data: Data, classes: int, like: Tensor) -> Tensor:
    """How many samples of each class a client has, [classes], in the type and place of `like`."""

    def add(acc: Tree, x: Tensor, y: Tensor, mask: Tensor) -> Tree:
        here = mask.to(like.dtype)[:, None]
        return {"counts": acc["counts"] + (one_hot(y, classes, like) * here).sum(dim=0)}

    return data.fold(add, {"counts": like.new_zeros(classes)})["counts"]


def draw_labels(key: Tensor, count: int, available: Tensor) -> Tensor:
    """Labels [count], uniform over the classes whose entry of `available` [classes] is 1, not 0.

    >>> draw_labels(keys.as_tensor(0), 4, torch.tensor([0.0, 1.0, 0.0]))
    tensor([1, 1, 1, 1])
    """
    place = keys.uniform(key, (count,), torch.float64) * available.sum()
    return (available.cumsum(dim=-1) <= place[..., None]).sum(dim=-1)


def cyclic(batch: Tensor, rows: int, classes: int) -> Tensor:
    """Labels [rows] of a batch, told by its number: 0, 1, … and again, on from batch to batch.

    >>> cyclic(torch.tensor(1), 4, 3)
    tensor([1, 2, 0, 1])
    """
    return (batch * rows + torch.arange(rows, device=batch.device)) % classes
