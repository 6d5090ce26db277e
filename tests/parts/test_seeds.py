"""Seeds: different samples of the class that they stand for, all alike likely to be drawn."""

from __future__ import annotations

import pytest
import torch

from fedshift import keys
from fedshift.batches import Pool, View
from fedshift.data.augment import Pipeline
from fedshift.federation import Samples
from fedshift.parts.seeds import seeds_of

Y = torch.tensor([2, 0, 0, 2, 0, 0, 0, 2, 0, 2, 2, 0])
X = torch.arange(len(Y)).double()[:, None].expand(-1, 3) + 1.0
LIKE = torch.zeros((), dtype=torch.float64)


def view(x=X, y=Y, mask=None):
    mask = torch.ones(len(y), dtype=torch.bool) if mask is None else mask
    pool = Pool.of([Samples(x, y)], torch.device("cpu"))
    return View(pool, torch.arange(len(y)), mask, Pipeline(), torch.float64)


class Batched:
    """Data that come in batches of five."""

    def __init__(self, data):
        self.data = data

    def fold(self, f, start, batch=256):
        return self.data.fold(f, start, batch=5)


@pytest.mark.parametrize("data", [view(), Batched(view())])
def test_samples_of_each_class_without_replacement(data):
    x, there = seeds_of(data, 4, 6, (3,), keys.as_tensor(3), LIKE)
    assert there.sum(1).tolist() == [6, 0, 5, 0]
    for c in (0, 2):
        found = x[c][there[c] > 0][:, 0]
        assert len(found.unique()) == len(found)
        assert set(found.tolist()) <= set(X[:, 0][Y.eq(c)].tolist())
    assert not x[there == 0].any()


def test_how_data_are_batched_changes_nothing():
    one, two = (
        seeds_of(d, 3, 2, (3,), keys.as_tensor(1), LIKE)[0] for d in (view(), Batched(view()))
    )
    assert torch.equal(one, two)


def test_every_sample_has_the_same_chance():
    drawn = torch.stack(
        [seeds_of(view(), 3, 1, (3,), keys.as_tensor(k), LIKE)[0][0, 0, 0] for k in range(280)]
    )
    counts = [(drawn == v).sum().item() for v in X[Y == 0, 0]]
    assert sum(counts) == 280 and min(counts) > 18 and max(counts) < 62  # 40 each, 3.7 sigma


def test_padding_is_never_drawn():
    mask = torch.arange(len(Y)) < 4
    x, there = seeds_of(view(mask=mask), 3, 5, (3,), keys.as_tensor(0), LIKE)
    assert there.sum(1).tolist() == [2, 0, 2]
    assert x.max() == 4.0
