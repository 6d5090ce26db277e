"""# MixStyle: styles mixed between samples

Behind early stages of the network, each sample's style (mean and standard deviation of every
channel) is mixed with that of another sample of the batch; what it shows, and its label, stay. The
paper is Zhou, Yang, Qiao and Xiang, Domain Generalization with MixStyle, ICLR 2021.

## The loss

The task's own. In training, with chance `p`, a layer draws a permutation of the batch and for every
sample its own lam ~ Beta(alpha, alpha), and with mean m and standard deviation s over positions

    x' = (lam s + (1 - lam) s[perm]) (x - m) / s + lam m + (1 - lam) m[perm]

No gradient flows through m and s. Layers go behind the first two stages that give maps or tokens
(`layers=early`).

## When to use it

Where one model has to serve inputs of another style than the ones it learns from. Within a client
all samples are of one style or nearly so: with FedFA beside it (`fedfa+mixstyle`), styles of other
clients come in too. `p=0` is off.

## What crosses the wire

Nothing beside the model.

## Differences from the released code

Partners are drawn from the whole batch (its "random" mode): the other one pairs domains, and a
client has one. It divides variances by n - 1, here by n: only quotients of standard deviations
count, so that the 1e-6 added to variances alone knows the difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedshift import keys
from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Method
from fedshift.net import insert_after
from fedshift.parts import style

_KEYS = 1 << 53  # so many keys a layer draws from


@dataclass(frozen=True)
class MixStyle(Method):
    """Layers that mix the styles of a batch's samples.

    >>> MixStyle(layers="1").p
    0.5
    """

    name: ClassVar[str] = "mixstyle"
    paper: ClassVar[str] = "Zhou et al., Domain Generalization with MixStyle, ICLR 2021"

    p: float = hp(0.5, "chance that a layer acts on a batch (p)", low=0, high=1, off=0.0)
    alpha: float = hp(0.1, "both parameters of the Beta distribution (alpha)", low=0.01)
    layers: str = hp(
        "early", "stages with a layer behind: early, maps, all, or names or numbers by commas"
    )

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Put a layer behind every chosen stage."""
        stages = style.with_style(facts.stage_shapes, self.layers, "mixstyle.layers")
        for stage in stages if self.p else ():
            insert_after(
                model, stage, "mixstyle_" + stage.replace(".", "_"), Mixing(self.p, self.alpha)
            )
        return model


class Mixing(nn.Module):
    """Mixes the styles of samples in pairs, in training, each time with a certain chance.

    Args:
        p: the chance.
        alpha: both parameters of the Beta distribution of a style's share.
    """

    def __init__(self, p: float = 0.5, alpha: float = 0.1) -> None:
        super().__init__()
        self.p, self.alpha = p, alpha

    def forward(self, x: Tensor) -> Tensor:
        """The features in mixed styles; unchanged in evaluation."""
        if not self.training:
            return x
        # one draw, from which all others follow: Beta draws are known to keys alone
        key = torch.randint(_KEYS, (), device=x.device)
        acts = keys.uniform(keys.fold_in(key, "acts")) < self.p
        lam = keys.beta(keys.fold_in(key, "lambda"), self.alpha, self.alpha, (len(x),))
        return mixed(x, lam, keys.permutation(keys.fold_in(key, "partner"), len(x)), acts)


def mixed(x: Tensor, lam: Tensor, partner: Tensor, acts: Tensor) -> Tensor:
    """Features with a share lam [B] of their own style and the rest of their partners'.

    >>> x = torch.tensor([[[[1.0, 3.0]]], [[[10.0, 14.0]]]])
    >>> mixed(x, torch.tensor([0.5, 1.0]), torch.tensor([1, 0]), torch.tensor(True))[0]
    tensor([[[5.5000, 8.5000]]])
    """
    maps = style.as_maps(x)
    own = style.moments(maps.detach())
    share = lam.to(own.dtype).unsqueeze(1)
    new = share * own + (1.0 - share) * own.index_select(1, partner)
    return style.from_maps(style.restyle(maps, own, new, acts), x)
