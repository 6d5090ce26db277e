"""What is learnt: the loss and the score of a classification or a segmentation.

Both take logits [B, classes, ...] and labels [B, ...] (whole numbers) or soft labels of the shape
of the logits.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift.errors import BadValue

TASKS = ("classification", "segmentation")
_DICE_EPS = 1e-5


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
    """One minus the Dice overlap of probabilities and labels, averaged over classes."""
    p = torch.softmax(logits, dim=1)
    t = F.one_hot(y, logits.shape[1]).movedim(-1, 1).to(p.dtype) if y.dim() < p.dim() else y
    axes = (0, *range(2, p.dim()))
    overlap = 2.0 * (p * t).sum(axes) / (p.sum(axes) + t.sum(axes) + _DICE_EPS)
    return 1.0 - overlap.mean()


def scores(task: str, logits: Tensor, y: Tensor) -> Tensor:
    """A score from 0 to 1 for each sample: whether it is right, or its mean Dice overlap.

    >>> scores("classification", torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 1]))
    tensor([1., 0.], dtype=torch.float64)
    """
    guess = logits.argmax(dim=1)
    if task == "classification":
        return (guess == y).to(torch.float64)
    axes = tuple(range(1, y.dim()))
    per_class = []
    for c in range(logits.shape[1]):
        p, t = (guess == c).to(torch.float64), (y == c).to(torch.float64)
        per_class.append(2.0 * (p * t).sum(axes) / (p.sum(axes) + t.sum(axes) + _DICE_EPS))
    return torch.stack(per_class).mean(dim=0)
