"""Virtual images: the same for all who have the key, alike within a class, unlike between."""

from __future__ import annotations

import pytest
import torch

from fedshift import keys
from fedshift.parts.virtual import Virtual

KEY = keys.as_tensor(7)
SHAPES = [(1, 6, 6), (3, 20, 33), (3, 32, 32), (12,)]


@pytest.mark.parametrize("shape", SHAPES)
def test_images_follow_from_key_class_and_number(shape):
    y, number = torch.tensor([0, 1, 1, 0]), torch.tensor([5, 5, 6, 5])
    made = Virtual(shape)(KEY, y, number, torch.float64)
    assert made.shape == (4, *shape)
    assert torch.equal(made[0], made[3])
    assert not torch.allclose(made[1], made[2])
    one = Virtual(shape)(KEY, y[2:3], number[2:3], torch.float64)
    assert torch.allclose(one[0], made[2], atol=1e-12), "whatever is beside it"
    other = Virtual(shape)(keys.as_tensor(8), y, number, torch.float64)
    assert not torch.allclose(other, made)
    flat = made.flatten(1)
    assert torch.allclose(flat.mean(1), torch.zeros(4).double(), atol=1e-9)
    assert torch.allclose(flat.std(1, unbiased=False), torch.ones(4).double(), atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_classes_are_told_apart_by_their_means(shape):
    y = torch.arange(200) % 10
    virtual = Virtual(shape)
    seen, new = (virtual(KEY, y, torch.arange(a, a + 200)).flatten(1) for a in (0, 200))
    means = torch.stack([seen[y == c].mean(0) for c in range(10)])
    right = (torch.cdist(new, means).argmin(1) == y).float().mean()
    assert right > 0.9


@pytest.mark.parametrize("shape", SHAPES)
def test_images_under_vmap(shape):
    y, number = torch.arange(6).reshape(3, 2) % 4, torch.arange(6).reshape(3, 2)
    each = torch.vmap(lambda y, n: Virtual(shape)(KEY, y, n, torch.float64))(y, number)
    one = Virtual(shape)(KEY, y.flatten(), number.flatten(), torch.float64)
    assert torch.allclose(each.flatten(0, 1), one, atol=1e-12)
