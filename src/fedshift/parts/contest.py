"""A contest between heads: features that the others' heads classify rightly and one's own does not.

A generator trained on it makes what a client lacks (Taghiyarrenani et al., 2023). The minus sign
before the own head's part is a gradient reversal behind the generator: forward and backward pass
are the same. What stands behind it has no upper bound, so that without a cap a generator soon
thinks of nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedshift.tree import Tree

if TYPE_CHECKING:
    from fedshift.net import Net


@dataclass(frozen=True)
class Contest:
    """The loss of one client's generator.

    Args:
        grl: what the own head's cross-entropy does: reversed and without gradient above
            ln(classes) + 2 ("capped"), reversed ("uncapped"), or not reversed and weighted by the
            number of clients ("released").
        strength: of the reversal.
        alternate: one of the two terms in turn, the others' first, instead of their sum.

    >>> logits = torch.tensor([[[1.0, 0.5]], [[2.0, 0.0]], [[0.5, 1.0]]])
    >>> me = torch.tensor([1.0, 0.0, 0.0])
    >>> step = torch.tensor(0)
    >>> Contest()(logits, torch.tensor([0]), me, torch.ones(3, 2), total=3, step=step)
    tensor(0.0764)
    """

    grl: str = "capped"
    strength: float = 1.0
    alternate: bool = False

    def __call__(
        self, logits: Tensor, y: Tensor, me: Tensor, weight: Tensor, total: int, step: Tensor
    ) -> Tensor:
        """The loss on features made for classes y [B].

        Args:
            logits: what the heads of all participants say of the features [K, B, C].
            y: the wanted classes.
            me: 1 at the client's place among the participants, 0 elsewhere [K].
            weight: how much a head counts for a class [K, C].
            total: clients of the federation.
            step: says whose turn it is.
        """
        ce, weight = cross_entropies(logits, y), weight[:, y]
        mine = me @ ce.mean(dim=1)
        if self.grl == "released":
            # the weights' mean beside the losses' mean, as the released code multiplies them
            weight = weight.mean(dim=1)
            known = (1.0 - me) @ (weight * ce.mean(dim=1))
            lacked = total * (me @ weight) * mine
        else:
            share = (1.0 - me)[:, None] * weight
            share = share / share.sum(dim=0).clamp_min(torch.finfo(share.dtype).tiny)
            known = (share * ce).sum(dim=0).mean()
            if self.grl == "capped":
                mine = mine.clamp_max(math.log(logits.shape[2]) + 2.0)
            lacked = -self.strength * mine
        if self.alternate:
            return torch.where(step % 2 == 0, known, lacked)
        return known + lacked


def every_head(net: Net, models: Tree) -> Callable[[Tensor], Tensor]:
    """What the heads of stacked models [K, ...] say of features, [B, D] -> [K, B, C].

    They are in eval mode; gradients flow to the features.
    """
    heads = {n: t for n, t in models.items() if n.startswith("head.")} or models
    return lambda z: torch.vmap(lambda head: net.at(head, grad=True).head(z))(heads)


def cross_entropies(logits: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of several heads' logits [K, B, C] on each of the samples, [K, B].

    >>> logits = torch.tensor([[[1.0, 0.5]], [[2.0, 0.0]]])
    >>> cross_entropies(logits, torch.tensor([0]))
    tensor([[0.4741],
            [0.1269]])
    """
    at = y.expand(len(logits), -1)[..., None]
    return -logits.log_softmax(dim=2).gather(2, at).squeeze(2)
