"""A client's loss on features that a server's generator makes of wanted classes.

Two terms (Zhu, Hong and Zhou, ICML 2021): cross-entropy of the head on features of labels drawn
among those that there are, and consistency of what the model says of a batch with what its head
says of features generated for the batch's labels. Nothing here trains the generator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift import keys
from fedshift.method import Ctx
from fedshift.parts.labels import draw_labels, one_hot
from fedshift.parts.latent_generator import LatentGenerator
from fedshift.tree import under

if TYPE_CHECKING:
    from fedshift.net import Net, Output

_LEAST = 1e-4  # where weights stop falling


def falling(start: float, decay: float, rounds: Tensor, like: Tensor) -> Tensor:
    """A weight that falls by a factor per round, down to 1e-4.

    It is 0 as long as there have been no rounds, when no generator is trained yet.

    >>> falling(10.0, 0.98, torch.tensor([0, 1]), torch.zeros(()))
    tensor([0.0000, 9.8000])
    """
    weight = (start * torch.pow(decay, rounds.to(like.dtype))).clamp_min(_LEAST)
    return torch.where(rounds > 0, weight, 0.0)


def generated_terms(
    generator: LatentGenerator,
    count: int,
    weights: tuple[Tensor | None, Tensor | None],
    out: Output,
    y: Tensor,
    ctx: Ctx,
    net: Net,
) -> dict[str, Tensor]:
    """The terms "generated" and "consistency".

    Args:
        generator: the kind of what lies under "generator" in `ctx.received`; under "available"
            there may be which classes are drawn [classes] (all otherwise).
        count: how many features are generated for labels drawn. Where these are more than the
            batch, their term weighs so much more.
        weights: of the two terms (None: leave it out).
        out, y, ctx, net: as a method's `loss` has them.
    """
    tensors = under("generator", ctx.received)
    like, classes = tensors["mean.bias"], ctx.facts.classes
    available = ctx.received.get("available", like.new_ones(classes))
    key = keys.fold_in(ctx.key, "generated")
    wanted = draw_labels(keys.fold_in(key, "labels"), count, available)
    both = torch.cat([one_hot(labels, classes, like) for labels in (wanted, y)])
    made = generator(tensors, both, generator.draw(key, len(both), tensors)).z
    terms: dict[str, Tensor] = {}
    alpha, beta = weights
    if alpha is not None:
        ce = F.cross_entropy(net.head(made[:count]), wanted)
        terms["generated"] = alpha * count / len(y) * ce
    if beta is not None:
        target = net.head(made[count:]).detach()
        terms["consistency"] = beta * consistency(out.logits, target)
    return terms


def consistency(logits: Tensor, target: Tensor) -> Tensor:
    """KL(softmax(target) || softmax(logits)), a mean over samples.

    >>> round(consistency(torch.tensor([[2.0, 0, 0]]), torch.tensor([[1.0, 1, 0]])).item(), 5)
    0.37755
    """
    log_p, log_q = target.log_softmax(dim=1), logits.log_softmax(dim=1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=1).mean()
