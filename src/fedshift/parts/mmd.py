"""How far apart two batches of vectors are: maximum mean discrepancies, and the plain square.

All take x and y of shape [B, D] and give a scalar. The discrepancies compare the two batches as
sets; `paired` compares row with row. Products are as exact as their factors, also under autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

_TINY = 1e-12  # keeps the bandwidth of coinciding points above zero


def gaussian(x: Tensor, y: Tensor, kernels: int = 5) -> Tensor:
    """The squared discrepancy under a sum of Gaussian kernels of doubling widths (biased).

    The middle width is the mean squared distance between two different points of both batches
    together; no gradient flows through it.

    >>> x = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    >>> y = torch.tensor([[1.0, 0.0], [2.0, 2.0]])
    >>> round(gaussian(x, y).item(), 6)
    1.917027
    """
    half, apart = len(x), squared_distances(torch.cat([x, y]))
    middle = bandwidth(apart.detach())
    widths = [middle * 2.0 ** (i - kernels // 2) for i in range(kernels)]
    k = torch.stack([torch.exp(-apart / width) for width in widths]).sum(dim=0)
    return k[:half, :half].mean() + k[half:, half:].mean() - 2.0 * k[:half, half:].mean()


def squared_distances(x: Tensor) -> Tensor:
    """Squared distances [B, B] between all rows.

    >>> squared_distances(torch.tensor([[0.0], [3.0]]))
    tensor([[0., 9.],
            [9., 0.]])
    """
    x = x - x.detach().mean(dim=0)  # distances stay, cancellation below does not
    length = x.square().sum(dim=1)
    return (length[:, None] + length[None, :] - 2.0 * _product(x, x.T)).clamp_min(0.0)


def bandwidth(apart: Tensor) -> Tensor:
    """The mean over pairs of two different points, from their squared distances [B, B]."""
    n = len(apart)
    return apart.sum() / (n * n - n) + _TINY


def mean_cov(x: Tensor, y: Tensor) -> Tensor:
    """Mean squared differences of the means and of the (unbiased) covariances, added.

    >>> x = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    >>> mean_cov(x, torch.tensor([[1.0, 0.0], [2.0, 2.0]]))
    tensor(1.3125)
    """
    means = (x.mean(dim=0) - y.mean(dim=0)).square().mean()
    return means + (_covariance(x) - _covariance(y)).square().mean()


def paired(x: Tensor, y: Tensor) -> Tensor:
    """The mean squared difference between rows of the same position.

    >>> paired(torch.zeros(1, 2), torch.tensor([[1.0, 3.0]]))
    tensor(5.)
    """
    return (x - y).square().mean()


def _covariance(x: Tensor) -> Tensor:
    centred = x - x.mean(dim=0)
    return _product(centred.T, centred) / (len(x) - 1)


def _product(a: Tensor, b: Tensor) -> Tensor:
    with torch.autocast(a.device.type, enabled=False):
        return a @ b


DISTANCES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gaussian": gaussian,
    "mean-cov": mean_cov,
    "l2": paired,
}
