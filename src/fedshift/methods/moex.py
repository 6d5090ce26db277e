"""# MoEx: exchanged moments with mixed labels

Mean and standard deviation of early features say much about a sample. MoEx takes them out at one
layer, puts in those of another sample of the batch, and asks the network for both labels: the
sample's own, and that of the one whose moments it carries. The paper is Li, Wu, Lim, Belongie and
Weinberger, On Feature Normalization and Data Augmentation, CVPR 2021.

## The loss

With chance `p`, and one permutation of the batch in each step, behind one stage

    h' = s[perm] (h - m) / s + m[perm]

and the loss is lam L(y) + (1 - lam) L(y[perm]) with the task's L; otherwise it is L(y). m and s are
taken over the channels at every position (`norm=pono`), over the positions of every channel (`in`)
or over both (`ln`), with 1e-5 added to variances. Gradients flow through them.

## When to use it

For classification of pictures, on networks whose first stage keeps most of the detail. The paper
takes lam = 0.9 and p = 1 for ImageNet, which are the defaults, and lam = 0.5 and p = 0.25 for
CIFAR. `p=0` is off.

Other methods' terms are of the batch as it was, with its own labels; they cost a pass of their own.

## What crosses the wire

Nothing beside the model.

## Differences from the released code

It divides variances by n - 1, here by n: the quotient of two standard deviations is the same, but
for the 1e-5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from fedshift import keys, task
from fedshift.errors import BadModel, BadValue
from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Method
from fedshift.parts import style

if TYPE_CHECKING:
    from fedshift.net import Net, Output

EPS = 1e-5
AXES = {"pono": (1,), "in": (2,), "ln": (1, 2)}  # of maps [B, C, P]


@dataclass(frozen=True)
class MoEx(Method):
    """Moments of features from one sample, the rest from another.

    >>> MoEx(lam=0.5, p=0.25).norm
    'pono'
    """

    name: ClassVar[str] = "moex"
    paper: ClassVar[str] = (
        "Li et al., On Feature Normalization and Data Augmentation (MoEx), CVPR 2021"
    )

    p: float = hp(1.0, "chance that moments are exchanged in a step", low=0, high=1, off=0.0)
    lam: float = hp(0.9, "weight of a sample's own label (lambda)", low=0, high=1)
    norm: str = hp("pono", "what moments are taken over", choices=tuple(AXES))
    stage: str = hp("1", "the stage behind which moments are exchanged, by its name or number")

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """The model as it is, once its stage has moments to exchange."""
        shape = facts.stage_shapes[self._stage(facts)]
        values = {"pono": style.channels(shape), "in": style.positions(shape)}
        if values.get(self.norm, 2) == 1:
            what = "channel" if self.norm == "pono" else "position"
            raise BadModel(
                f"moex.norm is '{self.norm}', but stage '{self._stage(facts)}' has one {what}, so "
                "no spread: choose another norm, or another moex.stage"
            )
        return model

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """Both labels' losses, of a pass with exchanged moments."""
        if self.p == 0 or ctx.phase != "model":
            return {}
        partner = keys.permutation(keys.fold_in(ctx.key, "partner"), len(out.x))
        acts = keys.uniform(keys.fold_in(ctx.key, "acts")) < self.p

        def change(h: Tensor) -> Tensor:
            return torch.where(acts, exchanged(h, partner, self.norm), h)

        logits = net.head(net.features(out.x, {self._stage(ctx.facts): change}))
        own, other = (
            task.loss(ctx.facts.task, logits, label) for label in (y, y.index_select(0, partner))
        )
        share = torch.where(acts, self.lam, torch.ones_like(own))
        return {"task": share * own + (1.0 - share) * other}

    def _stage(self, facts: Facts) -> str:
        stages = style.chosen(facts.stage_shapes, self.stage)
        if len(stages) != 1:
            raise BadValue(
                f"moex.stage is '{self.stage}', which is {len(stages)} stages: name one of "
                f"{', '.join(facts.stage_shapes)}"
            )
        return next(iter(stages))


def exchanged(h: Tensor, partner: Tensor, norm: str = "pono", eps: float = EPS) -> Tensor:
    """Features with the moments of their partners.

    >>> h = torch.tensor([[1.0, 3.0], [0.0, 10.0]])
    >>> exchanged(h, torch.tensor([1, 0]), eps=0.0)
    tensor([[ 0., 10.],
            [ 1.,  3.]])
    """
    maps, axes = style.as_maps(h), AXES[norm]
    mean = maps.mean(axes, keepdim=True)
    apart = maps - mean
    std = (apart.square().mean(axes, keepdim=True) + eps).sqrt()
    new = std.index_select(0, partner) / std * apart + mean.index_select(0, partner)
    return style.from_maps(new, h)
