"""# FedSAM: local steps towards flat minima

A mean of models is good where the loss is flat around them. So each client takes the gradient not
where it is but a step uphill from there, which leads to where the loss stays low all around. The
papers are Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022,
and Caldarola, Caputo and Ciccone, Improving Generalization in Federated Learning by Seeking Flat
Minima, ECCV 2022.

## The loss

The task's own, with other gradients: with g = grad L(w) over all trained tensors of the model,

    w' = w + rho g / ||g||,   and the step is taken with grad L(w')

With `adaptive`, the distance is measured in units of each weight's size (ASAM, Kwon et al. 2021):
w' = w + rho T^2 g / ||T g|| with T = |w| + eta for weights, and 1 for biases and norms.

Both passes see the same batch, the same dropout and the same random layers. The second leaves
running statistics alone.

## When to use it

Where labels differ between clients, or one global model has to serve unseen sites. It doubles the
time of a step. `rho` is 0.05 to 0.1 (adaptive: 0.5 to 0.7). Phases that train other networks than
the model (generators, projection heads) take plain gradients. `rho=0` is off.

## What crosses the wire

Nothing beside the model.

## Differences from other codes

FedFA's table has a FedSAM with Adam under it, at SGD's rate of 0.01, which very likely is why it
collapses there. This one takes the protocol's optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedshift.hparam import hp
from fedshift.method import Ctx, Method, Objective
from fedshift.parts.sharpness import uphill, uphill_adaptive
from fedshift.tree import Tree


@dataclass(frozen=True)
class FedSAM(Method):
    """Sharpness-aware local steps.

    >>> FedSAM(rho=0.5, adaptive=True).eta
    0.2
    """

    name: ClassVar[str] = "fedsam"
    paper: ClassVar[str] = (
        "Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022"
    )

    rho: float = hp(0.05, "how far uphill the gradient is taken (rho)", low=0, off=0.0)
    adaptive: bool = hp(False, "measure that distance in units of each weight's size (ASAM)")
    eta: float = hp(0.2, "added to a weight's size, where adaptive (eta)", low=0)

    def gradient(self, loss: Objective, params: Tree, ctx: Ctx) -> Tree:
        """The gradient uphill."""
        grads = loss.grad(params)
        if self.rho == 0 or ctx.phase != "model":
            return grads
        if self.adaptive:
            return loss.grad(uphill_adaptive(params, grads, self.rho, self.eta))
        return loss.grad(uphill(params, grads, self.rho))
