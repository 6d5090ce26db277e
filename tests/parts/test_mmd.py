"""Distances between batches, against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedshift import keys
from fedshift.parts import mmd

X = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
Y = torch.tensor([[1.0, 0.0], [2.0, 2.0]], dtype=torch.float64)


def draws(name: str, rows: int = 6) -> torch.Tensor:
    return keys.normal(keys.as_tensor(keys.fold(0, name)), (rows, 3), torch.float64)


def test_gaussian_by_hand():
    # squared distances: x0-x1 2, y0-y1 5, x0-y0 1, x0-y1 8, x1-y0 1, x1-y1 2; twice their sum 19
    # over 4 * 3 ordered pairs is the middle width 38/12 = 3.166667
    middle = 38 / 12
    apart = mmd.squared_distances(torch.cat([X, Y]))
    assert apart[0].tolist() == pytest.approx([0, 2, 1, 8], abs=1e-12)
    assert mmd.bandwidth(apart).item() == pytest.approx(middle, abs=1e-11)
    assert mmd.bandwidth(apart).item() == pytest.approx(3.166667, abs=5e-7)

    def k(d: float) -> float:
        return sum(math.exp(-d / (middle / 4 * 2**i)) for i in range(5))

    xx, yy = (2 * k(0) + 2 * k(2)) / 4, (2 * k(0) + 2 * k(5)) / 4
    xy = (k(1) + k(8) + k(1) + k(2)) / 4
    assert mmd.gaussian(X, Y).item() == pytest.approx(xx + yy - 2 * xy, abs=1e-12)
    assert mmd.gaussian(X, Y).item() == pytest.approx(1.917027, abs=5e-7)


def test_gaussian_of_a_batch_and_itself_is_zero_also_where_all_points_coincide():
    assert mmd.gaussian(X, X).item() == pytest.approx(0.0, abs=1e-12)
    same = torch.ones(3, 2, requires_grad=True)
    value = mmd.gaussian(same, torch.ones(3, 2))
    value.backward()
    assert value.item() == pytest.approx(0.0, abs=1e-6)
    assert torch.isfinite(same.grad).all()


def test_gaussian_is_the_same_far_from_the_origin():
    assert mmd.gaussian(X + 1e6 / 3, Y + 1e6 / 3).item() == pytest.approx(1.917027, abs=5e-7)


def test_no_gradient_flows_through_the_width():
    x, y = draws("x"), draws("y") + 0.5
    x.requires_grad_()
    mmd.gaussian(x, y).backward()
    fixed = (torch.cdist(p := torch.cat([x, y]).detach(), p) ** 2).sum() / (12 * 11)

    def with_width(x: torch.Tensor) -> torch.Tensor:
        pool = torch.cat([x, y])
        d = (pool[:, None] - pool[None]).square().sum(2)
        k = sum(torch.exp(-d / (fixed / 4 * 2**i)) for i in range(5))
        return (k[:6, :6] + k[6:, 6:] - k[:6, 6:] - k[6:, :6]).mean()

    again = x.detach().requires_grad_()
    with_width(again).backward()
    assert (x.grad - again.grad).abs().max() < 1e-12


def test_mean_cov_by_hand():
    # means (.5, .5) and (1.5, 1): mean square of (1, .5) is .625; covariances [[.5, .5], [.5, .5]]
    # and [[.5, 1], [1, 2]]: mean square of (0, .5, .5, 1.5) is .6875
    assert mmd.mean_cov(X, Y).item() == pytest.approx(1.3125, abs=1e-12)
    assert mmd.mean_cov(X, X).item() == 0.0


def test_paired_looks_at_rows():
    assert mmd.paired(X, Y).item() == pytest.approx((1 + 0 + 1 + 1) / 4)
    assert mmd.paired(X, X.flip(0)).item() > 0.0


@pytest.mark.parametrize("name", mmd.DISTANCES)
def test_distances_map_over_clients(name):
    x, y = torch.stack([draws("a"), draws("b")]), torch.stack([draws("c"), draws("d")])
    mapped = torch.vmap(mmd.DISTANCES[name])(x, y)
    each = torch.stack([mmd.DISTANCES[name](a, b) for a, b in zip(x, y)])
    assert mapped.dtype == torch.float64 and (mapped - each).abs().max() < 1e-12


@pytest.mark.parametrize("name", mmd.DISTANCES)
def test_autocast_does_not_round_distances(name):
    x, y = draws("x").float(), draws("y").float()
    plain = mmd.DISTANCES[name](x, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(mmd.DISTANCES[name](x, y), plain)
