"""One step uphill, to where a loss is sharp: what sharpness-aware minimisation looks at."""

from __future__ import annotations

import torch

from fedshift.tree import Tree, square_norm

EPS = 1e-12  # beside the norm that divides


def uphill(params: Tree, grads: Tree, rho: float) -> Tree:
    """The point at distance rho in the direction of the gradient, over all tensors together.

    >>> w, g = {"w": torch.tensor([1.0]), "v": torch.tensor([0.0])}, torch.tensor([3.0])
    >>> uphill(w, {"w": g, "v": torch.tensor([4.0])}, rho=0.5)
    {'w': tensor([1.3000]), 'v': tensor([0.4000])}
    """
    factor = rho / (square_norm(grads).sqrt() + EPS)
    return {n: p + factor * grads[n] for n, p in params.items()}


def uphill_adaptive(params: Tree, grads: Tree, rho: float, eta: float) -> Tree:
    """The same, in a space in which every weight is scaled by its size: w + rho T^2 g / ||T g||.

    T is |w| + eta for tensors of two axes or more (weights), and 1 for the others.

    >>> w, g = {"w": torch.tensor([[2.0, 0.0]])}, {"w": torch.tensor([[1.0, 1.0]])}
    >>> uphill_adaptive(w, g, rho=1.0, eta=0.0)
    {'w': tensor([[4., 0.]])}
    """
    size = {n: p.abs() + eta if p.dim() > 1 else torch.ones_like(p) for n, p in params.items()}
    scaled = {n: size[n] * g for n, g in grads.items()}
    factor = rho / (square_norm(scaled).sqrt() + EPS)
    return {n: p + factor * size[n] * scaled[n] for n, p in params.items()}
