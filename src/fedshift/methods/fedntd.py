"""# FedNTD: distillation of the classes that are not true

A client forgets what it has no samples of. The received model still knows it, and shows it in how
it ranks the classes that are *not* the label. A client distils exactly that, and leaves the true
class to cross-entropy. The paper is Lee, Jeong, Shin, Bae and Yun, Preservation of the Global
Knowledge by Not-True Distillation in Federated Learning, NeurIPS 2022.

## The loss

With q and q_g, the softmaxes at temperature tau over the C - 1 logits that are left without the
true class, of the trained model and of the received one (frozen, in evaluation mode):

    CE + beta tau^2 KL(q_g || q)

## When to use it

When clients lack classes. It needs three classes or more (of two, one is left, and the term is 0),
and costs one more forward pass a step.

## What crosses the wire

Nothing beside the model.

## Differences from the released code

None in the default. FedBR's code for it differs in two points:

- Its teacher stays in training mode and normalises by the batch: `teacher="train"`. That matters
  where there is batch norm and clients look different, since received statistics then fit nobody.
- It takes the mean over the C - 1 classes too: divide beta by C - 1.

Soft labels, as Mixup makes them, have no one true class; here it is the one of the largest weight
(FedBR's code leaves Mixup out).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift.hparam import hp
from fedshift.method import Ctx, Method

if TYPE_CHECKING:
    from fedshift.net import Net, Output


@dataclass(frozen=True)
class FedNTD(Method):
    """Distillation of the classes that are not true.

    >>> FedNTD(beta=0.1, tau=3.0).tau
    3.0
    """

    name: ClassVar[str] = "fedntd"
    paper: ClassVar[str] = (
        "Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated "
        "Learning, NeurIPS 2022"
    )

    beta: float = hp(1.0, "weight of the distillation (beta)", low=0, off=0.0)
    tau: float = hp(1.0, "temperature of both softmaxes (tau)", low=1e-3)
    teacher: str = hp("eval", "mode of the received model", choices=("eval", "train"))

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """The divergence from the received model, true class left out."""
        if self.beta == 0 or ctx.phase != "model":
            return {}
        if self.teacher == "eval":
            before: Net = net.at(ctx.initial)
        else:
            own = {n: t for n, t in ctx.initial.items() if n not in net.buffers}
            before = net.aside(own, grad=False)
        return {"not_true": self.beta * not_true(out.logits, before(out.x), y, self.tau)}


def not_true(logits: Tensor, teacher: Tensor, y: Tensor, tau: float) -> Tensor:
    """tau^2 KL(teacher || logits) over the classes (second axis) without the true, batch mean.

    >>> logits, teacher = torch.tensor([[2.0, 1.0, 0.0]]), torch.zeros(1, 3)
    >>> round(not_true(logits, teacher, torch.tensor([0]), 1.0).item(), 4)
    0.1201
    """
    label = y.argmax(dim=1) if y.is_floating_point() else y
    classes = torch.arange(logits.shape[1], device=logits.device)
    true = label.unsqueeze(1) == classes.reshape(-1, *[1] * (logits.dim() - 2))
    wide = torch.promote_types(logits.dtype, torch.float32)
    ours, theirs = (_rest(t.to(wide) / tau, true) for t in (logits, teacher))
    each = theirs.exp() * (theirs - ours)
    return tau**2 * each.masked_fill(true, 0.0).sum(dim=1).mean()


def _rest(scores: Tensor, true: Tensor) -> Tensor:
    """Logarithms of the softmax without the true class, whose own entry is 0."""
    # a large number instead of infinity: infinity minus infinity would be NaN
    return F.log_softmax(scores.masked_fill(true, -1e30), dim=1).masked_fill(true, 0.0)
