"""# RSC: train without the features that decide most

A network leans on the features that predict best on its own data, which may be those that do not
hold elsewhere. So in each step the most decisive ones are muted, and the network must predict with
the rest. The paper is Huang, Wang, Xing and Huang, Self-Challenging Improves Cross-Domain
Generalization, ECCV 2020; here every client trains so, and the server averages, as in the
comparisons of FedDG-GA (Zhang et al., CVPR 2023).

## The loss

With features z, head h and o_y the logit of the label, for each sample

    g = d o_y / dz,     m = 1 where g is among its lower 1 - `features`, else 0

and with p and p_m the probability of the label at z and at z m, the mask m is applied to the share
`batch_share` of the samples whose p - p_m is largest. The loss is CE(h(z m), y) there and
CE(h(z), y) elsewhere. Masks are constants: no gradient flows through them. With shares of a third,
6 of 9 features stay, and 341 of 512.

Predictions use all features.

## When to use it

When a model must serve sites that it has not seen. It needs a head that looks at many features, and
costs three further passes through the head alone. Goes with `feddg-ga`.

## What crosses the wire

Nothing beside the model.

## Differences from the released code

- This is the form of DomainBed's code, on the features before the head. The authors' own mutes
  positions or channels of the last feature map, with shares that grow over training; it is not
  offered.
- DomainBed keeps what is strictly below the threshold, and so mutes the largest entry even at a
  share of 0. Here what equals the threshold is kept.
- FedDG-GA's released script for RSC never switches it on and trains plain FedAvg: that is
  `features=0`.
- Of soft labels (Mixup), o_y and p are the means that the label gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedshift import task
from fedshift.hparam import hp
from fedshift.method import Ctx, Method
from fedshift.parts.labels import one_hot

if TYPE_CHECKING:
    from fedshift.net import Net, Output


@dataclass(frozen=True)
class RSC(Method):
    """The most decisive features muted, for the samples that lose most by it.

    >>> RSC(features=0.5).features
    0.5
    """

    name: ClassVar[str] = "rsc"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    paper: ClassVar[str] = (
        "Huang et al., Self-Challenging Improves Cross-Domain Generalization, ECCV 2020"
    )

    features: float = hp(1 / 3, "share of the features that is muted", low=0, high=1, off=0.0)
    batch_share: float = hp(
        1 / 3, "share of the samples whose features are muted", low=0, high=1, off=0.0
    )

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """Cross-entropy with the most decisive features muted."""
        if self.features == 0 or self.batch_share == 0 or ctx.phase != "model":
            return {}
        label = one_hot(y, ctx.facts.classes, out.z)
        mask = self.mask(net, out.z.detach(), label)
        return {"task": task.loss(ctx.facts.task, net.head(out.z * mask), y)}

    def mask(self, net: Net, z: Tensor, label: Tensor) -> Tensor:
        """1 for what is kept of features z [B, D] with labels [B, classes], 0 for what is muted."""

        def said(v: Tensor) -> Tensor:  # logits of a pass that leaves no trace
            return net.aside().head(v)

        slope = torch.func.grad(lambda v: (said(v) * label).sum())(z).detach()
        keep = lowest(slope, self.features)
        with torch.no_grad():
            sure, muted = (said(v).softmax(dim=1).mul(label).sum(1) for v in (z, z * keep))
        whole = lowest((sure - muted)[None], self.batch_share)[0]
        return (keep | whole[:, None]).to(z.dtype)


def lowest(values: Tensor, drop: float) -> Tensor:
    """Which values [B, N] are not above the quantile 1 - drop of their row.

    >>> lowest(torch.tensor([[3.0, 1.0, 2.0, 4.0]]), 0.5)
    tensor([[False,  True,  True, False]])
    """
    place = (values.shape[1] - 1) * (1.0 - drop)
    rank = int(place + 1e-9)  # the quantile lies there or between there and the next
    return values <= values.sort(dim=1).values[:, rank : rank + 1]
