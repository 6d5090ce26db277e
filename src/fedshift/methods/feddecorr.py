"""# FedDecorr: features that do not collapse

Clients whose labels differ learn features that correlate strongly: few directions carry everything,
and the mean of such models inherits it. So each client adds a penalty on the correlations between
the features of its batch. The paper is Shi, Liang, Zhang, Tan and Bai, Towards Understanding and
Mitigating Dimensional Collapse in Heterogeneous Federated Learning, ICLR 2023.

## The loss

With the features of B samples in D dimensions, each dimension standardised over the batch, as z:

    CE + beta L_dec,   L_dec = mean over i != j of (z^T z)_ij^2 / B      (`form="official"`)

## When to use it

On top of any method, when labels are skewed. It needs batches of two or more (of one, the term is
0), and costs a product of B D^2 a step.

## What crosses the wire

Nothing beside the model.

## Differences from the released code

None in the default. Three scalings are about, and beta does not carry over from one to another:

- `form="official"`, the authors' code, is the one above;
- `form="paper"` is the printed mean over all D^2 entries of the squared correlation matrix, whose
  diagonal adds a constant 1/D;
- `form="fedbr"`, FedBR's code, is the mean over all D^2 entries of (z^T z / B)^2, with 1e-4 added
  to standard deviations: about B times less than the official one.
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

FORMS = ("official", "paper", "fedbr")


@dataclass(frozen=True)
class FedDecorr(Method):
    """A penalty on correlated features.

    >>> FedDecorr(beta=0.01).beta
    0.01
    """

    name: ClassVar[str] = "feddecorr"
    paper: ClassVar[str] = (
        "Shi et al., Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous "
        "Federated Learning, ICLR 2023"
    )
    tasks: ClassVar[tuple[str, ...]] = ("classification",)

    beta: float = hp(0.1, "weight of the penalty (beta)", low=0, off=0.0)
    form: str = hp("official", "how the penalty is scaled", choices=FORMS)

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """The penalty on the features of the batch."""
        if self.beta == 0 or ctx.phase != "model":
            return {}
        return {"decorrelation": self.beta * decorrelation(out.z, self.form)}


def decorrelation(features: Tensor, form: str = "official") -> Tensor:
    """The penalty on features [B, D]; 0 for a batch of one.

    >>> twins = torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0], [4.0, 8.0]])
    >>> round(decorrelation(twins).item(), 4)
    2.25
    """
    z = features.flatten(1)
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    samples, width = z.shape
    if samples < 2:
        return (z * 0.0).sum()
    z = z - z.mean(dim=0)
    variance = z.square().sum(dim=0) / (samples - 1)
    if form == "fedbr":
        # a feature that never fires has no gradient: the root of 0 would make it NaN
        still = variance == 0
        deviation = torch.where(still, 1.0, variance).sqrt() * ~still
        product = _gram(z / (deviation + 1e-4))
        return (product / samples).square().mean()
    product = _gram(z / (variance + 1e-8).sqrt())
    if form == "paper":
        return (product / (samples - 1)).square().mean()
    apart = product.square().sum() - product.diagonal().square().sum()
    return apart / max(1, width * (width - 1)) / samples


def _gram(z: Tensor) -> Tensor:
    with torch.autocast(z.device.type, enabled=False):  # a sum, not a layer of a network
        return z.T @ z
