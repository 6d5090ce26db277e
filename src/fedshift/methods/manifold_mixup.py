"""# Manifold Mixup: mixed features with mixed labels

Mixup at a depth that is drawn anew for every batch: the samples, or what comes out of one of the
network's stages, are mixed in pairs, and so are the labels. The paper is Verma, Lamb, Beckham,
Najafi, Mitliagkas, Lopez-Paz and Bengio, Manifold Mixup: Better Representations by Interpolating
Hidden States, ICML 2019.

## The loss

A step draws one of the places (the input, and behind each stage), lam ~ Beta(alpha, alpha) and a
permutation of the batch. At this place

    h' = lam h + (1 - lam) h[perm]

and the task's loss is of what the rest of the network makes of h', with the labels
lam y + (1 - lam) y[perm]. With `layers=input` it is Mixup.

## When to use it

As Mixup, of which it is the stronger form where batches are large; for classification and
segmentation. Beside FedFA it mixes what FedFA's layers have moved. Norms behind the place see mixed
features. `alpha=0` is off.

Other methods' terms are of the batch as it was, with its own labels; they cost a pass of their own.

## What crosses the wire

Nothing beside the model.

## Differences from the released code

Places are the stages of any network, not the first blocks of a ResNet; `layers=input,1,2` is the
nearest to those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from fedshift import keys, task
from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Method
from fedshift.methods.mixup import soft
from fedshift.net import Change
from fedshift.parts import style

if TYPE_CHECKING:
    from fedshift.net import Net, Output

INPUT = "input"


@dataclass(frozen=True)
class ManifoldMixup(Method):
    """Features mixed at a random depth, with soft labels.

    >>> ManifoldMixup(alpha=0.4, layers="input,1").alpha
    0.4
    """

    name: ClassVar[str] = "manifold-mixup"
    paper: ClassVar[str] = (
        "Verma et al., Manifold Mixup: Better Representations by Interpolating Hidden States, "
        "ICML 2019"
    )

    alpha: float = hp(
        2.0, "both parameters of the Beta distribution (0: no mixing)", low=0, off=0.0
    )
    layers: str = hp(
        "all", "where to mix: all places, or input, maps, and names or numbers of stages by commas"
    )

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """The model as it is, once all places are found in it."""
        self._places(facts)
        return model

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """The task's loss of a pass that mixes on its way."""
        if self.alpha == 0 or ctx.phase != "model":
            return {}
        places = self._places(ctx.facts)
        lam = keys.beta(keys.fold_in(ctx.key, "lambda"), self.alpha, self.alpha).to(ctx.lr.dtype)
        partner = keys.permutation(keys.fold_in(ctx.key, "partner"), len(out.x))
        place = keys.integers(keys.fold_in(ctx.key, "place"), len(places))
        # every place mixes, all but one of them with weight 1: the choice is the client's own
        changes = {
            name: mixing(torch.where(place == number, lam, 1.0), partner)
            for number, name in enumerate(places)
        }
        x = changes.pop(INPUT)(out.x) if INPUT in changes else out.x
        logits = net.head(net.features(x, changes))
        labels = mixing(lam, partner)(soft(y, ctx.facts.classes, lam))
        return {"task": task.loss(ctx.facts.task, logits, labels)}

    def _places(self, facts: Facts) -> tuple[str, ...]:
        """The input, where it is one of the places, and stages."""
        words = [word.strip() for word in self.layers.split(",")]
        stages = ",".join(word for word in words if word != INPUT) or "none"
        front = (INPUT,) if {INPUT, "all"} & set(words) else ()
        return (*front, *style.chosen(facts.stage_shapes, stages))


def mixing(lam: Tensor, partner: Tensor) -> Change:
    """The function that takes lam of each sample of a batch and 1 - lam of its partner.

    >>> mixing(torch.tensor(0.75), torch.tensor([1, 0]))(torch.tensor([[0.0], [4.0]]))
    tensor([[1.],
            [3.]])
    """

    def change(h: Tensor) -> Tensor:
        share = lam.to(h.dtype)
        return share * h + (1.0 - share) * h.index_select(0, partner)

    return change
