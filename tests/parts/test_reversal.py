"""Gradient reversal: the value passes, the gradient turns round, however the gradient is taken."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from fedshift.parts.reversal import reverse

X = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64)


def cube(x):
    return x.pow(3).sum()


def test_the_value_passes_and_the_gradient_turns():
    x = X.clone().requires_grad_()
    assert torch.equal(reverse(x, 0.3), x)
    (plain,) = torch.autograd.grad(cube(x), x)
    (turned,) = torch.autograd.grad(cube(reverse(x, 0.3)), x)
    assert torch.allclose(turned, -0.3 * plain)
    (twice,) = torch.autograd.grad(cube(reverse(reverse(x))), x)
    assert torch.equal(twice, plain)


def test_functional_gradients_and_maps_with_a_strength_of_each():
    strength = torch.tensor([0.5, 2.0], dtype=torch.float64)
    grad = torch.func.grad(lambda x, s: cube(reverse(x, s)))
    mapped = torch.vmap(grad)(X, strength)
    assert torch.allclose(mapped, -strength[:, None] * 3 * X.square())
    x = X.clone().requires_grad_()
    (outside,) = torch.autograd.grad(torch.vmap(lambda x: cube(reverse(x)))(x).sum(), x)
    assert torch.allclose(outside, -3 * X.square())


def test_its_place_is_behind_the_network():
    """On an input, which needs no gradient, a reversal changes no parameter's gradient."""
    w = torch.ones(2, 2, dtype=torch.float64, requires_grad=True)
    (plain,) = torch.autograd.grad(cube(F.linear(X, w)), w)
    (before,) = torch.autograd.grad(cube(F.linear(reverse(X), w)), w)
    (behind,) = torch.autograd.grad(cube(reverse(F.linear(X, w))), w)
    assert torch.equal(before, plain) and torch.equal(behind, -plain)
