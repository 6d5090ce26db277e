"""A generator of features for a wanted class, drawn from a normal that the network describes.

Noise and a one-hot label pass a hidden layer with batch norm; two heads give mean and log-variance
of the feature (the latent of a variational auto-encoder: Kingma and Welling, ICLR 2014). It is a
function of named tensors, one network's or mapped over a stack of them, and holds none itself: so
a server can train many at once, and a client run the one that was sent. A certain generator has
no spread, and features are the mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift import keys
from fedshift.parts.labels import one_hot
from fedshift.tree import Tree, pick

BUFFERS = ("norm.running_mean", "norm.running_var")
_TIED = 0.05  # the tied standard deviation is exp(0.05 mean)


@dataclass(frozen=True)
class Latent:
    """Features [B, D] with mean and log-variance of the normals that they were drawn from."""

    z: Tensor
    mean: Tensor
    log_variance: Tensor


@dataclass(frozen=True)
class LatentGenerator:
    """What all generators of a kind have in common.

    Args:
        noise: width of the noise.
        uniform: noise uniform on [0, 1) where it is standard normal otherwise.
        tied: the mean's head decides the spread too, exp(0.05 mean); the other head lies idle.
        certain: no spread, and no head for it: nothing is random behind the noise.

    >>> generator = LatentGenerator(noise=32)
    >>> tensors = generator.initial(keys.as_tensor(0), classes=10, hidden=256, width=32)
    >>> params, statistics = split(tensors)
    >>> sum(t.numel() for t in params.values())
    27968
    >>> drawn = generator.draw(keys.as_tensor(1), 2, tensors)
    >>> generator(tensors, torch.tensor([3, 7]), drawn).z.shape
    torch.Size([2, 32])
    """

    noise: int = 32
    uniform: bool = False
    tied: bool = False
    certain: bool = False

    def initial(
        self,
        key: Tensor,
        classes: int,
        hidden: int,
        width: int,
        dtype: torch.dtype = torch.float32,
    ) -> Tree:
        """Tensors of a new generator, as torch initialises its layers; keys [K] give a stack."""
        tensors: Tree = {}
        sizes = {"hidden": (self.noise + classes, hidden)}
        heads = ("mean",) if self.certain else ("mean", "log_variance")
        sizes |= dict.fromkeys(heads, (hidden, width))
        for layer, (inputs, outputs) in sizes.items():
            for part, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
                unit = keys.uniform(keys.fold_in(key, f"{layer}.{part}"), shape, dtype)
                tensors[f"{layer}.{part}"] = (2.0 * unit - 1.0) / math.sqrt(inputs)
        plain = tensors["hidden.bias"]
        for part, value in (("weight", 1), ("bias", 0), ("running_mean", 0), ("running_var", 1)):
            tensors[f"norm.{part}"] = torch.full_like(plain, value)
        return tensors

    def renewed(self, tensors: Mapping[str, Tensor], key: Tensor) -> Tree:
        """New generators in the place of others of their shapes, one for each key [K]."""
        like = tensors["mean.weight"]
        width, hidden = like.shape[-2:]
        return self.initial(key.to(like.device), self.classes(tensors), hidden, width, like.dtype)

    def classes(self, tensors: Mapping[str, Tensor]) -> int:
        """How many classes a generator knows."""
        return tensors["hidden.weight"].shape[-1] - self.noise

    def draw(self, key: Tensor, count: int, tensors: Mapping[str, Tensor]) -> Tree:
        """What is random in `count` features of a generator: "noise", and of its latent, "e".

        Keys with leading axes give each of their entries draws of its own.
        """
        like = tensors["mean.bias"]
        kind = keys.uniform if self.uniform else keys.normal
        drawn = {"noise": kind(keys.fold_in(key, "noise"), (count, self.noise), like.dtype)}
        if not self.certain:
            latent, shape = keys.fold_in(key, "latent"), (count, like.shape[-1])
            drawn["e"] = keys.normal(latent, shape, like.dtype)
        return drawn

    def __call__(
        self,
        tensors: Mapping[str, Tensor],
        y: Tensor,
        drawn: Mapping[str, Tensor],
        training: bool = False,
    ) -> Latent:
        """Features of the classes y [B] (or soft labels [B, classes]).

        Args:
            tensors: one generator's; in training, its running statistics move in place.
            y: the wanted classes.
            drawn: what `draw` made for as many.
            training: batch norm takes the batch's own statistics.
        """
        weight = tensors["hidden.weight"]
        label = one_hot(y, self.classes(tensors), weight)
        seen = torch.cat([drawn["noise"], label], dim=1)
        h = F.batch_norm(
            F.linear(seen, weight, tensors["hidden.bias"]),
            tensors["norm.running_mean"],
            tensors["norm.running_var"],
            tensors["norm.weight"],
            tensors["norm.bias"],
            training,
        ).relu()
        mean = F.linear(h, tensors["mean.weight"], tensors["mean.bias"])
        if self.certain:
            return Latent(mean, mean, torch.full_like(mean, -torch.inf))
        if self.tied:
            log_variance = 2.0 * _TIED * mean
        else:
            log_variance = F.linear(h, tensors["log_variance.weight"], tensors["log_variance.bias"])
        return Latent(reparametrised(mean, log_variance, drawn["e"]), mean, log_variance)


def split(tensors: Mapping[str, Tensor]) -> tuple[Tree, Tree]:
    """A generator's parameters, and its running statistics."""
    return {n: t for n, t in tensors.items() if n not in BUFFERS}, pick(tensors, BUFFERS)


def reparametrised(mean: Tensor, log_variance: Tensor, e: Tensor) -> Tensor:
    """A draw from a normal as a function of its mean and log-variance, e being standard normal."""
    return mean + e * torch.exp(0.5 * log_variance)


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) || N(0, 1)), summed over the last axis.

    >>> divergence(torch.tensor([0.5, -1.0]), torch.tensor([0.2, -0.4]))
    tensor(0.6709)
    """
    return 0.5 * (log_variance.exp() + mean.square() - 1.0 - log_variance).sum(dim=-1)
