"""Keyed noise around zero, by the name of its distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedshift import keys


def uniform(key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Uniform on [-1, 1)."""
    return 2.0 * keys.uniform(key, shape, dtype) - 1.0


def laplace(key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Laplace of scale 1 (variance 2), by inverting its distribution function."""
    half = keys.uniform(key, shape, dtype) - 0.5
    return -half.sign() * torch.log((1.0 - 2.0 * half.abs()).clamp_min(2.0**-53))


def normal(key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Standard normal."""
    return keys.normal(key, shape, dtype)


NOISES: Mapping[str, Callable[[Tensor, tuple[int, ...], torch.dtype], Tensor]] = {
    "uniform": uniform,
    "laplace": laplace,
    "normal": normal,
}


def perturbed(x: Tensor, name: str, spread: float | Tensor, key: Tensor) -> Tensor:
    """x with noise of a scale added: the bound of a uniform, the standard deviation of a normal.

    >>> perturbed(torch.zeros(2), "uniform", 0.0, keys.as_tensor(1))
    tensor([0., 0.])
    """
    return x + spread * NOISES[name](key, tuple(x.shape), x.dtype)
