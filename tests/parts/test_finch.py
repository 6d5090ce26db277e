"""Clusters by first neighbours, on directions in the plane."""

from __future__ import annotations

import math

import torch

from fedshift.parts.finch import coarsest, first_neighbours, linked


def at(*degrees: float) -> torch.Tensor:
    """Rows of unit length, and a tenth of it, in turn: cosines do not see lengths."""
    angle = torch.tensor(degrees) * math.pi / 180
    length = torch.tensor([1.0, 0.1]).repeat(len(degrees))[: len(degrees), None]
    return length * torch.stack([angle.cos(), angle.sin()], dim=1)


def test_neighbours_are_by_cosine():
    assert first_neighbours(at(0, 10, 25, 90)) == [1, 0, 1, 2]
    assert first_neighbours(at(0)) == [0]


def test_what_hangs_together_is_one():
    assert linked([1, 0, 1, 2]) == [0, 0, 0, 0]
    assert linked([4, 2, 1, 2, 0]) == [0, 1, 1, 1, 0]
    assert linked([3, 2, 1, 0, 2, 3]) == [0, 1, 1, 0, 1, 0]


def test_the_last_level_with_more_than_one():
    """Four pairs; the pairs at 0 and 20 are nearest to each other, and so are those at 90, 115."""
    rows = at(0, 2, 20, 23, 90, 93, 115, 117)
    assert linked(first_neighbours(rows)) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert coarsest(rows) == [0, 0, 0, 0, 1, 1, 1, 1]
    turned = torch.tensor([5, 0, 7, 2, 1, 6, 4, 3])
    assert coarsest(rows[turned]) == [0, 1, 0, 1, 1, 0, 0, 1]


def test_few_rows_are_one_cluster():
    assert coarsest(at(0)) == [0]
    assert coarsest(at(0, 90)) == [0, 0]
    assert coarsest(at(0, 1, 90)) == [0, 0, 0]
    assert coarsest(at(0, 1, 90, 92)) == [0, 0, 1, 1]
    assert coarsest(torch.zeros(3, 2)) == [0, 0, 0]
