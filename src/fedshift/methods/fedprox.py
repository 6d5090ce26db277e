"""FedProx (Li et al., MLSys 2020): local steps stay near the received model.

Each client adds (mu/2) ||w - w_t||^2 over the trained, shared parameters to its loss. Buffers and
what a client keeps for itself are not penalised. Some codes take the norm without its square, which
is another method (a gradient of constant length mu/2); this is the paper's.
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
