"""Losses and scores of the tasks, worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from fedshift import task
from fedshift.errors import BadValue, UnknownName

EPS = 1e-5


def as_logits(guess: list[int], classes: int = 2) -> torch.Tensor:
    """Logits of one row of pixels, [1, classes, 1, pixels]."""
    return F.one_hot(torch.tensor(guess), classes).T.double()[None, :, None]


# -- loss ----------------------------------------------------------------------------------------


def odds(rows: list[list[float]]) -> torch.Tensor:
    """Logits [B, 2, 1, pixels] whose probabilities of class 1 are the numbers."""
    p = torch.tensor(rows, dtype=torch.float64)
    return torch.stack([torch.zeros_like(p), torch.log(p / (1 - p))], dim=1)[:, :, None]


def test_dice_and_cross_entropy_by_hand():
    """Probabilities of class 1: .8, .4 and .5, .1; truth 1, 0 and 1, 0.

    Over the whole batch, class 1: overlap .8 + .5 = 1.3, sums 1.8 and 2, so
    (2.6 + e) / (3.8 + e); class 0: overlap .6 + .9 = 1.5, sums 2.2 and 2, so (3 + e) / (4.2 + e).
    Cross-entropy: minus the mean logarithm of .8, .6, .5, .9.
    """
    logits, y = odds([[0.8, 0.4], [0.5, 0.1]]), torch.tensor([[[1, 0]], [[1, 0]]])
    dice = 1 - ((2.6 + EPS) / (3.8 + EPS) + (3.0 + EPS) / (4.2 + EPS)) / 2
    entropy = -sum(map(math.log, (0.8, 0.6, 0.5, 0.9))) / 4
    assert dice == pytest.approx(0.300751, abs=1e-6)
    assert float(task.soft_dice(logits, y)) == pytest.approx(dice, abs=1e-12)
    found = float(task.loss("segmentation", logits, y))
    assert found == pytest.approx((entropy + dice) / 2, abs=1e-12)


def test_a_class_that_nobody_has_or_expects_costs_nothing():
    """Its overlap is e / e = 1 where probabilities are 0; without e above it would be 0."""
    logits = torch.full((1, 3, 2, 2), -1000.0)
    logits[:, 0] = 1000.0
    y = torch.zeros(1, 2, 2, dtype=torch.int64)
    assert float(task.soft_dice(logits, y)) == pytest.approx(0.0, abs=1e-6)


def test_soft_labels_that_are_hard_give_the_same():
    logits, y = odds([[0.8, 0.4], [0.5, 0.1]]), torch.tensor([[[1, 0]], [[1, 0]]])
    soft = F.one_hot(y, 2).movedim(-1, 1).double()
    hard = task.loss("segmentation", logits, y)
    torch.testing.assert_close(task.loss("segmentation", logits, soft), hard)


# -- scores --------------------------------------------------------------------------------------


def test_dice():
    """Class 0 overlaps in 2 of 2 and 3 pixels (0.799998), class 1 in 1 of 2 and 1 (0.666664)."""
    truth = torch.tensor([[[1, 0, 0, 0]]])
    found = task.scores("dice-all", as_logits([1, 1, 0, 0]), truth)
    assert found.tolist() == [pytest.approx(0.733331, abs=1e-6)]
    found = task.scores("dice", as_logits([1, 1, 0, 0]), truth)
    assert found.tolist() == [pytest.approx(0.666664, abs=1e-6)]
    perfect = task.scores("dice-all", as_logits([1, 0, 0, 0]), truth)
    assert perfect.tolist() == [pytest.approx(1.0, abs=1e-5)]


def test_each_image_counts_for_itself_and_each_foreground_class_alike():
    """First image: class 1 in 1 of 1 and 2 (2/3), class 2 in 1 of 2 and 1 (2/3). Second: 1, 0."""
    truth = torch.tensor([[[1, 1, 2, 0]], [[1, 2, 0, 0]]])
    logits = torch.cat([as_logits([1, 2, 2, 0], 3), as_logits([1, 0, 0, 0], 3)])
    found = task.scores("dice", logits, truth).tolist()
    assert found == [pytest.approx(2 / 3, abs=1e-5), pytest.approx(1 / 2, abs=1e-5)]


def test_a_class_that_an_image_lacks_is_right_where_it_is_not_guessed():
    nothing = torch.zeros(1, 1, 4, dtype=torch.int64)
    assert task.scores("dice", as_logits([0, 0, 0, 0]), nothing).tolist() == [1.0]
    assert task.scores("dice", as_logits([0, 0, 0, 1]), nothing).tolist() == [0.0]


def test_labels_may_be_bytes():
    truth = torch.tensor([[[1, 0, 0, 0]]])
    for metric in task.METRICS["segmentation"]:
        a, b = (task.scores(metric, as_logits([1, 1, 0, 0]), t) for t in (truth, truth.byte()))
        assert torch.equal(a, b)


def test_what_is_not_known():
    with pytest.raises(UnknownName, match="did you mean dice"):
        task.scores("dize", as_logits([0]), torch.zeros(1, 1, 1, dtype=torch.int64))
    with pytest.raises(UnknownName, match="metric of segmentation 'accuracy'"):
        task.metric_of("segmentation", "accuracy")
    with pytest.raises(BadValue, match="choose from"):
        task.loss("ranking", as_logits([0]), torch.zeros(1, 1, 1, dtype=torch.int64))
