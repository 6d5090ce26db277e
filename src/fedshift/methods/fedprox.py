"""# FedProx: local steps stay near the received model

A client that trains for long on data unlike the others' goes far from where the mean will be. So
each client is pulled back to the model that it received, the more the farther it is. The paper is
Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, Federated Optimization in Heterogeneous Networks,
MLSys 2020.

## The loss

    task + (mu / 2) ||w - w_t||^2

over the trained, shared parameters. Buffers and what a client keeps for itself are not pulled.

## When to use it

When clients take many or unequal numbers of local steps. `mu` has to fit the learning rate: beyond
1 / rate the pull overshoots. `mu=0` is FedAvg.

## What crosses the wire

Nothing beside the model.

## Differences from other codes

Some, FedFA's among them, take the norm without its square: a pull of constant strength mu / 2,
which is another method. This is the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedshift.hparam import hp
from fedshift.method import Ctx, Method

if TYPE_CHECKING:
    from fedshift.net import Net, Output


@dataclass(frozen=True)
class FedProx(Method):
    """A quadratic pull towards the received model.

    >>> FedProx(mu=0.1).mu
    0.1
    """

    name: ClassVar[str] = "fedprox"
    paper: ClassVar[str] = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"

    mu: float = hp(0.01, "weight of the proximal term (mu)", low=0, off=0.0)

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """The proximal term."""
        now = net.tensors
        apart = [(now[n] - ctx.initial[n]).square().sum() for n in ctx.shared]
        if not apart:  # nothing is shared: there is nothing to stay near
            return {}
        return {"proximal": 0.5 * self.mu * torch.stack(apart).sum()}
