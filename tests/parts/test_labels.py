"""Labels to generate for."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from fedshift import keys
from fedshift.batches import Pool, View
from fedshift.data.augment import Pipeline
from fedshift.federation import Samples
from fedshift.parts.labels import class_counts, cyclic, draw_labels, hard, one_hot


def test_counts_leave_padding_out():
    y = torch.tensor([0, 1, 1, 2, 1])
    pool = Pool.of([Samples(torch.zeros(5, 1), y)], torch.device("cpu"))
    mask = torch.tensor([True, True, True, True, False])
    view = View(pool, torch.arange(5), mask, Pipeline(), torch.float64)
    counts = class_counts(view, 4, torch.zeros((), dtype=torch.float64))
    assert counts.dtype == torch.float64 and counts.tolist() == [1, 2, 1, 0]


def test_draws_are_uniform_over_what_is_available():
    available = torch.tensor([1.0, 0.0, 1.0, 1.0])
    drawn = draw_labels(keys.as_tensor(3), 6000, available)
    share = torch.bincount(drawn, minlength=4) / 6000
    # one third each; three standard deviations are 0.018
    assert share[1] == 0 and (share[[0, 2, 3]] - 1 / 3).abs().max() < 0.02
    each = torch.stack([keys.as_tensor(k) for k in (3, 4)])
    mapped = torch.vmap(lambda k: draw_labels(k, 50, available))(each)
    assert torch.equal(mapped[0], draw_labels(each[0], 50, available))
    assert not torch.equal(mapped[0], mapped[1])
    assert torch.equal(draw_labels(each[None], 50, available)[0], mapped)


def test_soft_labels_stay():
    soft = torch.tensor([[0.25, 0.75]])
    assert one_hot(soft, 2, soft) is soft
    hard = torch.tensor([1, 0])
    assert torch.equal(one_hot(hard, 3, soft), F.one_hot(hard, 3).float())


def test_cycles_go_on_from_batch_to_batch():
    # batch 3 * 10 + 2 of 4 rows starts at 32 * 4 mod 7 = 2
    assert cyclic(torch.tensor(32), 4, 7).tolist() == [2, 3, 4, 5]
    assert cyclic(torch.tensor(33), 4, 7).tolist() == [6, 0, 1, 2]
    assert cyclic(torch.tensor(0), 7, 2).tolist() == [0, 1, 0, 1, 0, 1, 0]


def test_soft_labels_count_as_their_heaviest():
    soft = torch.tensor([[0.2, 0.1, 0.7], [0.6, 0.4, 0.0]])
    assert hard(soft).tolist() == [2, 0]
    assert torch.equal(hard(torch.tensor([1, 2])), torch.tensor([1, 2]))
