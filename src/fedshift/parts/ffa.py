"""Federated feature augmentation: the layer that jitters the style of features, and its server.

`FFA` draws a new mean and a new standard deviation for every channel of every sample. How far they
may go mixes the client's own variance (over its batch) with the variance over clients, which the
server measures on moving averages of the clients' statistics (`spread`, `shared_variance`).

Statistics are rows [S, C] of C channels: means, then standard deviations; where a stage has a
single position there is no spread, and S is 1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedshift.parts.style import EPS, as_maps, from_maps, moments, restyle, variance


def modulation(shared: Tensor) -> Tensor:
    """How much each channel is widened (gamma): Student-t weights of mean 1 over channels.

    Where no channel differs between clients, all weigh the same.

    >>> modulation(torch.tensor([0.0, 1.0, 3.0]))
    tensor([0.0000, 1.2000, 1.8000])
    >>> modulation(torch.zeros(2))
    tensor([1., 1.])
    """
    t = shared / (1.0 + shared)
    total = t.sum(dim=-1, keepdim=True)
    gamma = t.shape[-1] * t / total.clamp_min(torch.finfo(t.dtype).tiny)
    return torch.where(total > 0, gamma, 1.0)


def normal(u: Tensor) -> Tensor:
    """Standard normal numbers from uniform ones on [0, 1) that are multiples of 2^-24.

    By inverting the distribution function in the middle of each step, so that all are finite.

    >>> normal(torch.tensor([0.0, 0.5, 1 - 2**-24])).round(decimals=3)
    tensor([-5.4200,  0.0000,  5.4200])
    """
    return 2**0.5 * torch.erfinv(2.0 * u - (1.0 - 2**-24))


def beginning(like: Tensor) -> Tensor:
    """What moving averages begin from: means 0 and standard deviations 1, in rows like these.

    >>> beginning(torch.empty(2, 3))
    tensor([[0., 0., 0.],
            [1., 1., 1.]])
    """
    return torch.stack([torch.full_like(row, start) for row, start in zip(like, (0.0, 1.0))])


class FFA(nn.Module):
    """Jitters the style of a stage's output, in training, each time with a certain chance.

    Args:
        channels: of the stage's output.
        positions: of the stage's output; with a single one there is no spread to jitter, and the
            layer adds noise to the values alone.
        p: the chance that the layer acts on a batch.
        momentum: of the moving averages (alpha).
        source: of the variance: "both", "client" or "random".
        std: the jitter's standard deviation where the source is "random".
        fusion: "adaptive" or "direct".
        unbiased: divide variances by n - 1.
        centred: hold the server's last mean of the clients' averages, too.

    The moving averages are held as what this trip adds (`average`, from zero) and as the weight
    that is left to what was there before (`decay`): whoever knows the start knows the average.
    """

    decay: Tensor
    average: Tensor
    variance: Tensor

    def __init__(
        self,
        channels: int,
        positions: int,
        p: float = 0.5,
        momentum: float = 0.99,
        source: str = "both",
        std: float = 0.5,
        fusion: str = "adaptive",
        unbiased: bool = False,
        centred: bool = False,
    ) -> None:
        super().__init__()
        self.p, self.momentum, self.source, self.random_std = p, momentum, source, std
        self.fusion, self.unbiased = fusion, unbiased
        self.rows = 2 if positions > 1 else 1
        if source == "both":
            like = torch.zeros(self.rows, channels)
            self.register_buffer("decay", torch.ones(()))
            self.register_buffer("average", like)
            self.register_buffer("variance", torch.ones_like(like))
            if centred:
                self.register_buffer("centre", beginning(like))

    def forward(self, x: Tensor) -> Tensor:
        """The features, jittered; unchanged in evaluation."""
        if not self.training:
            return x
        maps = as_maps(x)
        style = self.style(maps)
        # one draw for the coin and the noise: a keyed draw costs the same, large or small
        draw = torch.rand(1 + style.numel(), dtype=torch.float32, device=x.device)
        acts, noise = draw[0] < self.p, normal(draw[1:].to(style.dtype)).reshape(style.shape)
        self.observe(style, acts)
        return from_maps(self.jitter(maps, style, noise, acts), x)

    def style(self, maps: Tensor) -> Tensor:
        """The statistics of every sample, [S, B, C]."""
        return moments(maps, EPS, self.unbiased) if self.rows == 2 else maps.mean(dim=2)[None]

    def jitter(self, maps: Tensor, style: Tensor, noise: Tensor, acts: Tensor) -> Tensor:
        """The maps [B, C, P] in a style moved by noise [S, B, C], in units of its spread."""
        return restyle(maps, style, style + noise * self.spread(style), acts)

    def spread(self, style: Tensor) -> Tensor | float:
        """The jitter's standard deviations, [S, 1, C]; gradients flow into the client's part."""
        if self.source == "random":
            return self.random_std
        allowed = variance(style, 1, self.unbiased) + EPS
        if self.source == "both":
            widened = self.variance if self.fusion == "direct" else modulation(self.variance)
            allowed = (widened + 1.0) * allowed
        return allowed.sqrt().unsqueeze(1)

    @torch.no_grad()
    def observe(self, style: Tensor, acts: Tensor) -> None:
        """Move the averages, where the layer acts."""
        if self.source == "both":
            rate = (1.0 - self.momentum) * acts.to(self.decay.dtype)
            self.average.add_(rate * (style.mean(dim=1) - self.average))
            self.decay.mul_(1.0 - rate)


def shared_variance(
    mean: Tensor, var: Tensor, clients: int, scalar: bool = False, unbiased: bool = False
) -> Tensor:
    """The variance of statistics over clients (V), from their means and biased variances.

    `scalar` takes it over clients and channels together, and every channel gets that number.

    >>> rows = torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 4.0]])
    >>> mean, var = rows.mean(0), rows.var(0, correction=0)
    >>> shared_variance(mean, var, 3)
    tensor([2.6667, 2.0000])
    >>> shared_variance(mean, var, 3, scalar=True, unbiased=True)
    tensor([2.8000, 2.8000])
    """
    count = clients
    if scalar:
        count = clients * mean.shape[-1]
        whole = var.mean(dim=-1, keepdim=True) + variance(mean, -1).unsqueeze(-1)
        var = whole.expand_as(mean).clone()
    return var * (count / max(1, count - 1)) if unbiased else var


def deviation(x: Tensor, centre: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
    """What a client adds to the sums: its distance from the centre, and the square.

    Both are in units of the last spread over clients, so that numbers that agree in their first
    digits do not lose the others when they are squared and added.
    """
    apart = (x - centre) / _unit(shared)
    return apart, apart.square()


def from_sums(
    first: Tensor, second: Tensor, clients: int, centre: Tensor, shared: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over clients, from the sums of their deviations.

    >>> x = torch.tensor([[0.31], [0.33], [0.32]])
    >>> centre, shared = torch.tensor([0.3]), torch.tensor([1e-4])
    >>> first, second = (part.sum(0) for part in deviation(x, centre, shared))
    >>> mean, var = from_sums(first, second, 3, centre, shared)
    >>> round(mean.item(), 4), round(var.item(), 8)
    (0.32, 6.667e-05)
    """
    apart = first / clients
    spread = (second / clients - apart.square()).clamp_min(0.0)
    return centre + _unit(shared) * apart, _unit(shared).square() * spread


def _unit(shared: Tensor) -> Tensor:
    return (shared + EPS).sqrt()
