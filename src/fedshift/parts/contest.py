"""A contest between heads: features that the others' heads classify rightly and one's own does not.

A generator trained on it makes what a client lacks (Taghiyarrenani et al., 2023). The own head's
part stands behind a gradient reversal; its cross-entropy has no upper bound, so that without a cap
a generator soon thinks of nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift.parts.reversal import reverse

Head = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Contest:
    """The loss of one client's generator.

    Args:
        grl: what the own head's cross-entropy does: reversed and without gradient above
            ln(classes) + 2 ("capped"), reversed ("uncapped"), or not reversed and weighted by the
            number of clients ("released").
        strength: of the reversal.
        alternate: one of the two terms in turn, the others' first, instead of their sum.
    """

    grl: str = "capped"
    strength: float = 1.0
    alternate: bool = False

    def __call__(
        self,
        z: Tensor,
        y: Tensor,
        everyone: Head,
        own: Head,
        place: Tensor,
        weight: Tensor,
        total: int,
        step: int,
    ) -> Tensor:
        """The loss on features z [B, D] made for classes y [B].

        Args:
            z, y: what was made.
            everyone: logits [K, B, C] by the heads of all participants.
            own: logits [B, C] by the client's own head.
            place: 1 at the client's place among the participants, 0 elsewhere [K].
            weight: how much a head counts for a class [K, C].
            total: clients of the federation.
            step: says whose turn it is.
        """
        counts = weight[:, y]
        others = cross_entropies(everyone(z), y)
        if self.grl == "released":
            # the weights' mean beside the losses' mean, as the released code multiplies them
            known = ((1.0 - place) * counts.mean(dim=1) * others.mean(dim=1)).sum()
            lacked = total * (place @ counts).mean() * F.cross_entropy(own(z), y)
        else:
            share = (1.0 - place)[:, None] * counts
            share = share / share.sum(dim=0).clamp_min(torch.finfo(z.dtype).tiny)
            known = (share * others).sum(dim=0).mean()
            lacked = F.cross_entropy(own(reverse(z, self.strength)), y)
        if self.grl == "capped":
            lacked = lacked.clamp_max(math.log(weight.shape[1]) + 2.0)
        if self.alternate:
            return lacked if step % 2 else known
        return known + lacked


def cross_entropies(logits: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of several heads' logits [K, B, C] on each of the samples, [K, B].

    >>> logits = torch.tensor([[[1.0, 0.5]], [[2.0, 0.0]]])
    >>> cross_entropies(logits, torch.tensor([0]))
    tensor([[0.4741],
            [0.1269]])
    """
    at = y.expand(len(logits), -1)[..., None]
    return -logits.log_softmax(dim=2).gather(2, at).squeeze(2)
