"""# FedSR: simple representations

What a network says of an image should not depend on details of where it was taken. So its
representation is a draw from a Gaussian, and two terms keep that simple: it should be short, and
given the label it should look like a reference for that label, so that it tells little about the
image beyond its class. The paper is Nguyen, Torr and Lim, FedSR: A Simple and Effective Domain
Generalization Method for Federated Learning, NeurIPS 2022.

## The loss

A linear layer behind the features gives m and s of D dimensions each. With sigma = softplus(s) and
one draw z = m + sigma e, e ~ N(0, 1),

    CE(h(z), y) + l2r mean_i ||z_i|| + cmi mean_i sum_d KL( N(c m, (c sigma)^2) || r(. | y_i) )

and r(z | y) = N(mu_y, softplus(rho_y)^2) with parameters mu (0 at first), rho (1) and c (1), which
each client trains and keeps.

In evaluation the probabilities of `draws` draws are averaged; `draws=0` takes m alone. The draws
are the same for every image, so that a prediction does not depend on what else is predicted.

## When to use it

When the model is to serve sites that never took part. It changes the network: the head is replaced
by the Gaussian and a linear classifier. The weight `cmi` goes with D, over which the term sums.

## What crosses the wire

Nothing beside the model. The reference stays with its client, or travels with the model
(`share_reference=True`).

## Differences from the released code

- The paper's penalty is on the squared norm, `length="squared"`; the code's, whose weight is the
  default here, on the norm.
- It trains the reference without weight decay; here the protocol's holds for all parameters.
- Its backbone's last layer gives m and s; here a layer is added behind any network's features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift import keys, task
from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Method, Scope
from fedshift.parts.heads import replace_head
from fedshift.parts.labels import hard

if TYPE_CHECKING:
    from fedshift.net import Net, Output

REFERENCE = "fedsr_reference"
_LEAST = 1e-12  # a spread that has a logarithm


@dataclass(frozen=True)
class FedSR(Method):
    """Representations that are drawn, short, and alike within a class.

    >>> FedSR(draws=0).l2r
    0.01
    """

    name: ClassVar[str] = "fedsr"
    paper: ClassVar[str] = (
        "Nguyen et al., FedSR: A Simple and Effective Domain Generalization Method for Federated "
        "Learning, NeurIPS 2022"
    )
    tasks: ClassVar[tuple[str, ...]] = ("classification",)

    l2r: float = hp(0.01, "weight of the representation's length (alpha_L2R)", low=0)
    cmi: float = hp(5e-4, "weight of the distance from the reference (alpha_CMI)", low=0)
    length: str = hp("norm", "what of the length is penalised", choices=("norm", "squared"))
    width: int = hp(0, "width of the representation, D (0: that of the features)", low=0)
    draws: int = hp(20, "draws that a prediction averages over (0: the mean alone)", low=0)
    share_reference: bool = hp(False, "average the reference too")

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """The Gaussian and a classifier for the head, and the reference."""
        width = self.width or facts.width
        gaussian, classifier = Gaussian(facts.width, width), nn.Linear(width, facts.classes)
        replace_head(model, self.name, gaussian=gaussian, classifier=classifier)
        if self.cmi:
            model.add_module(REFERENCE, Reference(facts.classes, width))
        return model

    def scope(self, name: str, module: nn.Module) -> Scope:
        """The reference is its client's, unless it is shared."""
        own = isinstance(module, Reference) and not self.share_reference
        return Scope("kept" if own else "both")

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """Cross-entropy of a draw, its length, and how far it is from the reference."""
        if ctx.phase != "model":
            return {}
        mean, sigma = moments(net, out.z)
        noise = keys.normal(keys.fold_in(ctx.key, "draw"), tuple(mean.shape), mean.dtype)
        z = mean + sigma * noise
        terms = {"task": task.loss(ctx.facts.task, net.call("head.classifier", z), y)}
        if self.l2r:
            terms["length"] = self.l2r * length(z, self.length)
        if self.cmi:
            mu, rho, c = (net.tensors[f"{REFERENCE}.{n}"] for n in ("mean", "spread", "scale"))
            label = hard(y)
            towards = mu.index_select(0, label), F.softplus(rho).index_select(0, label)
            apart = divergence(c * mean, c * sigma, *towards).sum(dim=1).mean()
            terms["reference"] = self.cmi * apart
        return terms

    def predict(self, net: Net, x: Tensor, view: str) -> Tensor:
        """Logarithms of the mean probabilities over the draws."""
        if self.draws == 0:
            return net(x)
        mean, sigma = moments(net, net.features(x))
        key = keys.as_tensor(keys.fold(0, "fedsr"), x.device)
        noise = keys.normal(key, (self.draws, 1, mean.shape[1]), mean.dtype)
        z = mean + sigma * noise
        logits: Tensor = net.call("head.classifier", z.flatten(0, 1))
        each = logits.log_softmax(dim=-1).reshape(self.draws, len(x), -1)
        return each.logsumexp(dim=0) - math.log(self.draws)


class Gaussian(nn.Module):
    """A linear layer for mean and spread of the representation, which passes the mean on."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.both = nn.Linear(inputs, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        """The mean."""
        mean: Tensor = self.both(x).chunk(2, dim=1)[0]
        return mean


class Reference(nn.Module):
    """A Gaussian for each class, and the scale in which representations are compared with it."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(classes, width))
        self.spread = nn.Parameter(torch.ones(classes, width))
        self.scale = nn.Parameter(torch.ones(1))


def moments(net: Net, features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the representation, in float32 at least."""
    both = net.call("head.gaussian.both", features)
    mean, spread = both.to(torch.promote_types(both.dtype, torch.float32)).chunk(2, dim=1)
    return mean, F.softplus(spread)


def length(z: Tensor, kind: str = "norm") -> Tensor:
    """The mean length of rows, or of its square.

    >>> z = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    >>> length(z), length(z, "squared")
    (tensor(2.5000), tensor(12.5000))
    """
    if kind == "squared":
        return z.square().sum(dim=1).mean()
    norms: Tensor = torch.linalg.vector_norm(z, dim=1)
    return norms.mean()


def divergence(mean: Tensor, sigma: Tensor, mu: Tensor, rho: Tensor) -> Tensor:
    """KL(N(mean, sigma^2) || N(mu, rho^2)), element by element; signs of sigma do not matter.

    >>> zero, one = torch.zeros(1), torch.ones(1)
    >>> divergence(zero, one, zero, F.softplus(one))
    tensor([0.0624])
    """
    ratio = (rho / sigma.abs().clamp_min(_LEAST)).log()
    return ratio + (sigma.square() + (mean - mu).square()) / (2.0 * rho.square()) - 0.5
