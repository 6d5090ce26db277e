"""Means of samples: what they are made of, whose they are, and how they blend."""

from dataclasses import replace

import pytest
import torch

from fedshift import keys
from fedshift.batches import Pool, View
from fedshift.data.augment import Pipeline
from fedshift.federation import Samples
from fedshift.method import Uploads
from fedshift.parts import pseudo

KEY = keys.as_tensor(3)


def view(values: torch.Tensor, padded: int = 0) -> View:
    """Data of one client: samples [N, 1, 2] that each hold one number, padded with the last."""
    x = values[:, None, None].expand(-1, 1, 2)
    pool = Pool.of([Samples(x, torch.zeros(len(x), dtype=torch.int64))], torch.device("cpu"))
    at = torch.arange(len(x) + padded)
    return View(
        pool, at.clamp_max(len(x) - 1), at < len(x), Pipeline((0.5,), (2.0,)), torch.float64
    )


def means(data: View, n: int, count: int, each: int) -> torch.Tensor:
    return pseudo.means_of(data, torch.tensor(n), (1, 2), KEY, count, each, torch.float64)


def test_means_are_of_normalised_samples_drawn_with_replacement():
    # sample i holds 4^i: the mean of two says which two they are
    values = 4.0 ** torch.arange(5, dtype=torch.float64)
    found = means(view(values), 5, count=200, each=2)
    assert found.shape == (200, 1, 2) and torch.equal(found[..., 0], found[..., 1])
    plain = 2 * (found[:, 0, 0] * 2.0 + 0.5)
    pairs = {
        round((a + b).item()): (i, j) for i, a in enumerate(values) for j, b in enumerate(values)
    }
    drawn = [pairs[round(v)] for v in plain.tolist()]
    counts = torch.bincount(torch.tensor(drawn).flatten(), minlength=5)
    assert (counts > 50).all(), "400 draws of 5 samples: 80 each, sd 8"
    assert any(i == j for i, j in drawn)


def test_labels_are_averaged_with_their_samples():
    """Sample i holds i and is of class i mod 3: the means of one are samples with their labels."""
    values = torch.arange(7, dtype=torch.float64)
    data = view(values)
    data.pool.y.copy_(torch.arange(7) % 3)
    how = (torch.tensor(7), (1, 2), 3, KEY)
    x, y = pseudo.labelled_means_of(data, *how, 40, 1, torch.float64)
    sample = (2 * x[:, 0, 0] + 0.5).round().long()
    assert torch.equal(y, torch.eye(3, dtype=torch.float64)[sample % 3])
    x, y = pseudo.labelled_means_of(data, *how, 40, 4, torch.float64)
    assert torch.equal(x, means(data, 7, 40, 4)), "drawn as without labels"
    assert torch.allclose(y.sum(1), torch.ones(40).double()) and (4 * y % 1 == 0).all()


def test_padding_is_never_drawn_and_chunks_do_not_matter():
    values = torch.arange(300, dtype=torch.float64)  # more than one chunk of the pass
    whole = means(view(values), 300, 7, 10)
    assert torch.equal(whole, means(view(values, padded=41), 300, 7, 10))
    assert len(set(whole[:, 0, 0].tolist())) == 7


def test_proxies_are_scaled_but_not_normalised():
    x = torch.full((6, 1, 2, 2), 51, dtype=torch.uint8)
    assert torch.allclose(pseudo.means_at(x, KEY, 3, 10, torch.float64), torch.tensor(0.2).double())
    x = torch.arange(6.0)[:, None]
    found = pseudo.means_at(x, KEY, 50, 1, torch.float32)
    assert set(found.flatten().tolist()) == set(range(6))


def test_every_client_gives_as_many_as_any_other():
    sent = torch.arange(5)[:, None].expand(5, 3) + 0.1 * torch.arange(3)  # 5 clients, 3 means each
    taken = pseudo.pooled(sent, KEY, 13)
    givers = torch.bincount(taken.floor().long(), minlength=5)
    assert sorted(givers.tolist()) == [2, 2, 3, 3, 3]
    assert len(set(taken.tolist())) == 13, "no mean twice"
    # two clients did not come back: their share is filled with what is there
    assert sorted(set(pseudo.pooled(sent[:3], KEY, 13).floor().tolist())) == [0, 1, 2]
    first = {int(pseudo.pooled(sent, keys.as_tensor(k), 1)) for k in range(40)}
    assert first == set(range(5)), "who gives the odd one is drawn"


def test_donors_by_weight():
    sent = torch.arange(3)[:, None].expand(3, 900)
    taken = torch.bincount(
        pseudo.pooled(sent, KEY, 900, torch.tensor([2.0, 0.0, 1.0])), minlength=3
    )
    assert taken[1] == 0 and 540 < taken[0] < 660  # 600, sd 14


@pytest.mark.parametrize("donors", pseudo.DONORS)
def test_the_order_of_those_who_sent_does_not_matter(donors):
    sent = torch.arange(12.0).reshape(3, 4, 1)
    samples = torch.tensor([1.0, 8.0, 1.0])

    def drawn(*order: int) -> list[float]:
        at = torch.tensor(order)
        names = tuple("abc"[k] for k in order)
        up = Uploads(names, samples[at], samples[at], {}, {"m": sent[at]}, {}, 3, 0)
        return pseudo.collected(up, "m", KEY, 10, donors).flatten().tolist()

    found = drawn(0, 1, 2)
    assert found == drawn(2, 0, 1)
    of_b = sum(4 <= v < 8 for v in found)
    assert of_b >= 6 if donors == "samples" else of_b <= 5


def test_means_keep_their_precision_under_autocast():
    values = torch.arange(7, dtype=torch.float32) + 0.123456
    plain = means(view(values), 7, 9, 3)
    with torch.autocast("cpu", torch.bfloat16):
        shape = torch.float32
        found = pseudo.means_of(
            replace(view(values), dtype=shape), torch.tensor(7), (1, 2), KEY, 9, 3, shape
        )
    assert torch.allclose(found.double(), plain, atol=1e-6)


@pytest.mark.parametrize(
    ("partners", "label"),
    [
        ([2], [0.125, 0.125, 0.625, 0.125]),  # (1/4 + [class 2]) / 2
        ([2, 0], [0.416667, 0.083333, 0.416667, 0.083333]),  # (1/4 + [2] + [0]) / 3
        ([], [0.25] * 4),
    ],
)
def test_labels_of_blends(partners, label):
    hot = torch.eye(4)[partners][None]
    found = pseudo.mixed(torch.full((1, 4), 0.25), hot.reshape(1, len(partners), 4))
    assert found[0].tolist() == pytest.approx(label, abs=1e-6)
