"""A conditional GAN on flat vectors: noise and a label in, a sample of that class out.

Generator and critic are plain functions of named tensors, so that whoever has a generator's tensors
can use it. The game is Goodfellow et al., NeurIPS 2014, in its non-saturating form; labels enter
both networks as one-hot columns (Mirza and Osindero, 2014). Both take their step at the same
tensors, so that one optimizer step of their summed losses moves both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift import keys
from fedshift.optim import Optimizer
from fedshift.parts.fit import fit
from fedshift.parts.labels import one_hot
from fedshift.tree import Tree, row, under, with_prefix

_SLOPE = 0.2


@dataclass(frozen=True)
class ConditionalGAN:
    """Networks of three layers each, and how they are trained.

    Args:
        noise: width of the noise.
        hidden: width of the two hidden layers.
        steps, batch, lr: of Adam (betas 0.5 and 0.999), for both.

    >>> gan = ConditionalGAN(noise=8, hidden=16)
    >>> tensors = gan.initial(keys.as_tensor(0), classes=3, width=10)
    >>> gan.make(tensors, torch.zeros(2, 8), torch.tensor([0, 2])).shape
    torch.Size([2, 10])
    """

    noise: int = 64
    hidden: int = 256
    steps: int = 2000
    batch: int = 64
    lr: float = 2e-4

    def initial(
        self, key: Tensor, classes: int, width: int, dtype: torch.dtype = torch.float32
    ) -> Tree:
        """A fresh generator whose samples lie between 0 and 1."""
        sizes = (self.noise + classes, self.hidden, self.hidden, width)
        ends = {"low": torch.zeros((), dtype=dtype), "high": torch.ones((), dtype=dtype)}
        return _layers(key, sizes, dtype) | {n: t.to(key.device) for n, t in ends.items()}

    def make(self, tensors: Mapping[str, Tensor], z: Tensor, y: Tensor) -> Tensor:
        """Samples [B, width] of classes y [B] from noise z, between the generator's ends."""
        classes = tensors["one.weight"].shape[1] - z.shape[1]
        raw = _through(tensors, torch.cat([z, one_hot(y, classes, z)], dim=1))
        return tensors["low"] + (tensors["high"] - tensors["low"]) * torch.sigmoid(raw)

    def train(self, x: Tensor, y: Tensor, classes: int, key: int) -> Tree:
        """A generator of samples like x [N, width] of classes y [N], each class as often as others.

        Its ends are the least and the largest value of x.
        """
        begin = keys.as_tensor(key, x.device)
        ends = {"low": x.min(), "high": x.max()}
        fresh = self.initial(keys.fold_in(begin, "generator"), classes, x.shape[1], x.dtype) | ends
        sizes = (x.shape[1] + classes, self.hidden, self.hidden, 1)
        critic = _layers(keys.fold_in(begin, "critic"), sizes, x.dtype)
        order = torch.argsort(y, stable=True)
        x, y = x[order], y[order]
        count = torch.bincount(y, minlength=classes)
        there = torch.arange(classes, device=y.device)[count > 0]
        first = count.cumsum(0) - count

        def loss(tensors: Tree, rest: Tree, key: Tensor, step: Tensor) -> Tensor:
            chosen = there[keys.integers(keys.fold_in(key, "class"), len(there), (self.batch,))]
            u = keys.uniform(keys.fold_in(key, "sample"), (self.batch,), torch.float64)
            real = x[first[chosen] + (u * count[chosen]).long()]
            z = keys.normal(keys.fold_in(key, "noise"), (self.batch, self.noise), x.dtype)
            made = self.make(under("generator", tensors) | ends, z, chosen)
            return both_losses(under("critic", tensors), real, made, one_hot(chosen, classes, x))

        trained = {n: t for n, t in fresh.items() if n not in ends}
        players = with_prefix("generator", trained) | with_prefix("critic", critic)
        adam = Optimizer("adam", betas=(0.5, 0.999))
        stacked = {n: t[None] for n, t in players.items()}
        run = keys.fold_in(begin, "train")[None]
        done = fit(loss, stacked, self.steps, adam, run, lr=self.lr)
        return under("generator", row(done.params, 0)) | ends


def both_losses(critic: Mapping[str, Tensor], real: Tensor, made: Tensor, label: Tensor) -> Tensor:
    """The critic's loss and the generator's, summed: each has a gradient for its own player alone.

    >>> idle = {f"{n}.{p}": torch.zeros(s) for n in ("one", "two", "out")
    ...         for p, s in (("weight", (1, 1 if n != "one" else 2)), ("bias", 1))}
    >>> both_losses(idle, torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 1))  # 3 log 2
    tensor(2.0794)
    """
    still = {n: t.detach() for n, t in critic.items()}
    fooled = F.softplus(-_score(still, made, label)).mean()
    told = F.softplus(-_score(critic, real, label)).mean()
    return told + F.softplus(_score(critic, made.detach(), label)).mean() + fooled


def _score(critic: Mapping[str, Tensor], x: Tensor, label: Tensor) -> Tensor:
    return _through(critic, torch.cat([x, label], dim=1))


def _through(t: Mapping[str, Tensor], x: Tensor) -> Tensor:
    for name in ("one", "two"):
        x = F.leaky_relu(F.linear(x, t[f"{name}.weight"], t[f"{name}.bias"]), _SLOPE)
    return F.linear(x, t["out.weight"], t["out.bias"])


def _layers(key: Tensor, sizes: tuple[int, ...], dtype: torch.dtype) -> Tree:
    """Three linear layers as torch begins them."""
    found: Tree = {}
    for name, inputs, outputs in zip(("one", "two", "out"), sizes, sizes[1:]):
        for part, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
            unit = keys.uniform(keys.fold_in(key, f"{name}.{part}"), shape, dtype)
            found[f"{name}.{part}"] = (2.0 * unit - 1.0) / math.sqrt(inputs)
    return found
