"""Acquisition shifts: known answers, determinism, and that each does what its name says."""

import math

import pytest
import torch

from fedshift import keys
from fedshift.data import shifts
from fedshift.errors import BadData

X = (keys.bits(keys.as_tensor(5), (6, 1, 8, 10)) & 255).to(torch.uint8)
K = keys.bits(keys.as_tensor(9), (6,))

RANDOM = {
    "rotate": lambda x, k: shifts.rotate(x, 10, 20, k),
    "noise": lambda x, k: shifts.noise(x, 0.1, k),
    "specks": lambda x, k: shifts.specks(x, 0.3, k),
    "lighting": lambda x, k: shifts.lighting(x, 0.6, k),
    "texture": lambda x, k: shifts.texture(x, 0.8, 3, k),
}
FIXED = {
    "invert": shifts.invert,
    "levels": lambda x: shifts.levels(x, 0.2, 0.7),
    "gamma": lambda x: shifts.gamma(x, 2.0),
    "blur": lambda x: shifts.blur(x, 1.0),
    "coarse": lambda x: shifts.coarse(x, 3),
    "threshold": lambda x: shifts.threshold(x, 0.4),
    "thicken": shifts.thicken,
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_shifts_follow_the_key_of_each_image(name):
    f = RANDOM[name]
    out = f(X, K)
    assert out.dtype == torch.uint8 and out.shape == X.shape and not torch.equal(out, X)
    assert torch.equal(torch.cat([f(X[i : i + 1], K[i : i + 1]) for i in range(6)]), out)
    same = X[:1].expand(6, -1, -1, -1)
    assert not torch.equal(f(same, K)[0], f(same, K)[1])


@pytest.mark.parametrize("name", FIXED)
def test_fixed_shifts_change_every_image_alike(name):
    f = FIXED[name]
    out = f(X)
    assert out.dtype == torch.uint8 and out.shape == X.shape and not torch.equal(out, X)
    assert torch.equal(f(X[2:3]), out[2:3])


def test_known_answers():
    row = torch.tensor([0, 51, 102, 255], dtype=torch.uint8).reshape(1, 1, 1, 4)
    assert shifts.invert(shifts.invert(row)).flatten().tolist() == [0, 51, 102, 255]
    assert shifts.gamma(row, 2.0).flatten().tolist() == [0, 10, 41, 255]
    assert shifts.thicken(row).flatten().tolist() == [51, 102, 255, 255]
    square = torch.tensor([[0, 100, 7], [100, 200, 7], [50, 50, 9]], dtype=torch.uint8)
    coarse = shifts.coarse(square[None, None], 2)[0, 0]
    assert coarse.tolist() == [[100, 100, 7], [100, 100, 7], [50, 50, 9]]


def test_blur_spreads_a_point_as_a_gaussian_and_keeps_flat_images():
    point = torch.zeros(1, 1, 15, 15, dtype=torch.uint8)
    point[0, 0, 7, 7] = 255
    out = shifts.blur(point, 1.0)[0, 0].double()
    assert float(out[7, 7]) == pytest.approx(255 / (2 * math.pi), rel=0.02)
    assert float(out[7, 8] / out[7, 7]) == pytest.approx(math.exp(-0.5), rel=0.02)
    flat = torch.full((1, 1, 5, 5), 77, dtype=torch.uint8)
    assert torch.equal(shifts.blur(flat, 2.0), flat)


def test_strengths():
    grey = torch.full((40, 1, 16, 16), 128, dtype=torch.uint8)
    k = keys.bits(keys.as_tensor(1), (40,))
    assert float(shifts.noise(grey, 0.1, k).double().std()) == pytest.approx(25.5, rel=0.03)
    changed = (shifts.specks(grey, 0.1, k) != 128).double().mean()
    assert float(changed) == pytest.approx(0.1, abs=0.01)
    lit = shifts.lighting(grey, 0.5, k)
    assert int(lit.max()) <= 128 and int(lit.min()) >= 63
    white = torch.full_like(grey, 255)
    assert torch.equal(shifts.texture(white, 0.9, 4, k), white)  # only the dark is covered


def test_what_is_refused():
    with pytest.raises(BadData, match="uint8"):
        shifts.invert(torch.zeros(1, 1, 2, 2))
    with pytest.raises(BadData, match="key"):
        shifts.rotate(X, 0.0, jitter=5.0)
