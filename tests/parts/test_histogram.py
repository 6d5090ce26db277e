"""Soft histograms and their divergence, against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from fedshift.parts.histogram import (
    cuts,
    describe,
    histogram,
    limits,
    scaled,
    soft_bins,
    symmetric_kl,
)

D = torch.float64
Z = torch.tensor([0, 0.25, 0.6, 1.0], dtype=D)
Z2 = torch.tensor([0, 0.3, 0.35, 1.0], dtype=D)


def of(z: torch.Tensor, bins: int) -> torch.Tensor:
    """The histogram of values of one channel, with their own limits, at temperature 0.01."""
    maps = z.reshape(-1, 1, 1)
    return histogram(maps, limits(maps), bins, 0.01)[0]


@pytest.mark.parametrize(
    ("z", "bins", "expected"),
    [
        # cuts 0, 0.5, 1: a value on a cut is half in either bin, so the ends share out 1/8 each
        (Z, 4, [0.125000, 0.375011, 0.374989, 0.125000]),
        (Z, 8, [0.125000, 0.125060, 0.249880, 0.000071, 0.249671, 0.000318, 0.125000, 0.125000]),
        (Z2, 4, [0.125, 0.625, 0.125, 0.125]),
    ],
)
def test_worked_histograms(z, bins, expected):
    found = of(z, bins)
    assert torch.allclose(found, torch.tensor(expected, dtype=D), rtol=0, atol=5.1e-7), found
    assert found.sum().item() == pytest.approx(1.0, abs=1e-12)


def test_cuts_and_biases_of_four_bins():
    """Lines w u + b with w = 1 … 4, b = 0, 0, -0.5, -1.5: neighbours cross at 0, 0.5 and 1."""
    assert cuts(4, Z).tolist() == [0.0, 0.5, 1.0]
    assert cuts(8, Z).tolist() == pytest.approx([0, 1 / 6, 1 / 3, 1 / 2, 2 / 3, 5 / 6, 1])
    u = torch.tensor([0.2], dtype=D)
    logits = torch.tensor([0.2, 0.4, 0.6 - 0.5, 0.8 - 1.5], dtype=D) / 0.1
    assert torch.allclose(soft_bins(u, 4, 0.1), logits.softmax(0).unsqueeze(1))


def test_two_bins_meet_in_the_middle():
    assert soft_bins(torch.tensor([0.1, 0.5, 0.9], dtype=D), 2).round(decimals=3).tolist() == [
        [1.0, 0.5, 0.0],
        [0.0, 0.5, 1.0],
    ]


def test_worked_divergences():
    """For (1/2, 1/4, 1/4) and (1/4, 1/4, 1/2): 1/2 * 2 * 1/4 * log 2 = 0.173287."""
    p, q = torch.tensor([0.5, 0.25, 0.25], dtype=D), torch.tensor([0.25, 0.25, 0.5], dtype=D)
    assert symmetric_kl(p, q).item() == pytest.approx(0.173287, abs=5.1e-7)
    assert symmetric_kl(of(Z, 4), of(Z2, 4)).item() == pytest.approx(0.201163, abs=5.1e-7)
    assert symmetric_kl(p, p) == 0


def test_bins_that_underflow_to_zero_stay_finite():
    p = torch.tensor([1.0, 0.0], requires_grad=True)
    symmetric_kl(p, torch.tensor([0.0, 1.0])).backward()
    assert torch.isfinite(p.grad).all()


def test_channels_are_apart_and_positions_count_as_samples():
    maps = torch.stack([torch.stack([Z[:2], Z2[:2]]), torch.stack([Z[2:], Z2[2:]])])
    both = histogram(maps, limits(maps), 4)
    assert torch.allclose(both, torch.stack([of(Z, 4), of(Z2, 4)]))


def test_a_constant_channel_and_values_beyond_the_limits():
    maps = torch.tensor([[[2.0, 2.0]]], dtype=D)
    assert scaled(maps, *limits(maps)).tolist() == [[[0.0, 0.0]]]
    wide = scaled(torch.tensor([[[-1.0, 5.0]]], dtype=D), torch.zeros(1), torch.ones(1))
    assert wide.tolist() == [[[-1.0, 5.0]]], "not clamped"
    assert torch.isfinite(soft_bins(1e6 * wide)).all()


def test_limits_are_constants():
    low, high = limits(torch.randn(2, 3, 4, requires_grad=True))
    assert not low.requires_grad and not high.requires_grad


def test_masked_samples_count_for_nothing():
    maps = torch.randn(5, 3, 4, dtype=D)
    mask = torch.tensor([True, True, True, False, False])
    low, high = limits(maps, mask)
    assert torch.equal(low, maps[:3].amin((0, 2)))
    assert torch.equal(high, maps[:3].amax((0, 2)))


class Rows:
    """Samples that are maps themselves, behind the interface of a client's data."""

    def __init__(self, x, mask):
        self.x, self.mask, self.passes = x, mask, 0

    def fold(self, f, start, batch=256):
        self.passes += 1
        for x, mask in zip(self.x.split(batch), self.mask.split(batch)):
            start = f(start, x, x[:, 0, 0], mask)
        return start


@pytest.mark.parametrize(("held", "passes"), [(8, 1), (3, 1), (2, 2), (0, 2)])
def test_the_whole_of_a_client_s_data(held, passes, monkeypatch):
    """Ten samples and two of padding, in batches of 4 x 1: three batches, held or seen twice."""
    monkeypatch.setattr("fedshift.parts.histogram.HELD", held)
    x = torch.randn(12, 3, 4, dtype=D)
    x[10:] = float("inf")
    data = Rows(x, torch.arange(12) < 10)
    bounds, total = describe(data, lambda x: x, torch.zeros(3, dtype=D), 1, bins=4)
    assert data.passes == passes
    for found, expected in zip(bounds, limits(x[:10])):
        assert torch.equal(found, expected)
    assert torch.allclose(total / 10, histogram(x[:10], limits(x[:10]), 4))
