"""What is learnt: the loss and the scores of a classification or a segmentation.

Both take logits [B, classes, ...] and labels [B, ...] (whole numbers); the loss also takes soft
labels of the shape of the logits. In a segmentation class 0 is the background.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift.errors import BadValue, UnknownName

# The metrics of each task, the usual one first. "dice" leaves the background out, which is easy and
# hides the rest; "dice-all" counts it like any class, as FedFA's published numbers do.
METRICS = {"classification": ("accuracy",), "segmentation": ("dice", "dice-all")}
TASKS = tuple(METRICS)
_DICE_EPS = 1e-5


def metric_of(task: str, metric: str = "") -> str:
    """The metric that is asked for, or the task's usual one.

    >>> metric_of("segmentation"), metric_of("segmentation", "dice-all")
    ('dice', 'dice-all')
    """
    if task not in METRICS:
        raise UnknownName("task", task, TASKS)
    if metric and metric not in METRICS[task]:
        raise UnknownName(f"metric of {task}", metric, METRICS[task])
    return metric or METRICS[task][0]


def loss(task: str, logits: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy; for a segmentation, its mean with the soft Dice loss.

    >>> round(loss("classification", torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([2])).item(), 6)
    0.407606
    """
    if task == "classification":
        return F.cross_entropy(logits, y)
    if task == "segmentation":
        return 0.5 * (F.cross_entropy(logits, y) + soft_dice(logits, y))
    raise BadValue(f"task '{task}': choose from {', '.join(TASKS)}")


def soft_dice(logits: Tensor, y: Tensor) -> Tensor:
    """One minus the Dice overlap of probabilities and labels, averaged over classes.

    Sums are over the whole batch, so that a class that an image lacks does not count there. (FedFA,
    released code; 1e-5 above and below keeps a class that the batch lacks at 0 / 0 = 1.)
    """
    p = torch.softmax(logits, dim=1)
    t = y if y.dim() == p.dim() else _one_hot(y, p)
    axes = (0, *range(2, p.dim()))
    overlap = (2.0 * (p * t).sum(axes) + _DICE_EPS) / (p.sum(axes) + t.sum(axes) + _DICE_EPS)
    return 1.0 - overlap.mean()


def _one_hot(y: Tensor, like: Tensor) -> Tensor:
    """Labels [B, ...] as zeros and ones [B, classes, ...]."""
    classes = torch.arange(like.shape[1], device=y.device).reshape(-1, *[1] * (like.dim() - 2))
    return (y.unsqueeze(1) == classes).to(like.dtype)


def scores(metric: str, logits: Tensor, y: Tensor) -> Tensor:
    """A score from 0 to 1 for each sample: whether it is right, or its mean Dice overlap.

    >>> scores("accuracy", torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 1]))
    tensor([1., 0.], dtype=torch.float64)
    """
    guess = logits.argmax(dim=1)
    if metric == "accuracy":
        return (guess == y).to(torch.float64)
    count = logits.shape[1]
    first = 0 if metric == "dice-all" else min(1, count - 1)
    return torch.stack([dice(guess == c, y == c) for c in range(first, count)]).mean(dim=0)


def dice(guess: Tensor, truth: Tensor) -> Tensor:
    """2 |P and T| / (|P| + |T|) of two masks for each sample; 1 where both are empty.

    >>> dice(torch.tensor([[1, 1], [0, 0]]) > 0, torch.tensor([[1, 0], [0, 0]]) > 0)
    tensor([0.6667, 1.0000], dtype=torch.float64)
    """
    axes = tuple(range(1, truth.dim()))
    both = (guess & truth).sum(axes).to(torch.float64)
    total = (guess.sum(axes) + truth.sum(axes)).to(torch.float64)
    return torch.where(total > 0, 2.0 * both / (total + _DICE_EPS), 1.0)
