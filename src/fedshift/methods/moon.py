"""# MOON: nearer to the global model than to the last local one

A client that trains alone drifts: its features of an image go away from what the received model
sees in it, and the same way in every round. So its features are pulled to those of the received
model and pushed off those of the model with which the client ended its last round. They are
compared behind a small projection, which is a part of the network. The paper is Li, He and Song,
Model-Contrastive Federated Learning, CVPR 2021.

## The loss

With the projected features z of a sample by the trained model, z_g by the received one and z_p by
the client's previous ones, the last two without gradient and in evaluation mode:

    CE + mu mean_i -log( e^{s_g} / (e^{s_g} + sum_p e^{s_p}) ),
    s_g = cos(z, z_g) / tau,   s_p = cos(z, z_p) / tau

The projection is two linear layers with ReLU between; it stands between the features and the
classifier, and predictions pass through it (`head="projector"`).

In a client's first round there is no previous model, and the received one takes its place.

## When to use it

When labels are skewed and clients come back often: a previous model of long ago pushes off a place
where nobody is. A step costs two forward passes more. `mu` needs a search over 0.1, 1, 5, 10. The
projection makes a network deeper: compare with `mu=0`, which is FedAvg on the same network.

## What crosses the wire

Nothing beside the model, which has the projection and the classifier in the place of its head.
Clients keep their previous model, or `buffer` of them.

## Differences from the released code

None in the default. Others use other forms:

- FedBR's projection is 256 wide and gives 128: `hidden=256`, `out=128`. Its driver stores the old
  model under a name that the loss does not read, so its negatives are never a client's previous
  model; that is not offered.
- Some have no projection and compare the features themselves: `head="none"`.
- Where teachers are left in training mode, they normalise by the batch: `teacher="train"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Data, Method, Report, State
from fedshift.parts.contrast import cosine, infonce
from fedshift.parts.heads import replace_head
from fedshift.tree import Tree, map_tree, under, with_prefix

if TYPE_CHECKING:
    from fedshift.net import Net, Output


@dataclass(frozen=True)
class Moon(Method):
    """Features contrasted between the received model and the client's last.

    >>> Moon(mu=5.0, head="none").tau
    0.5
    """

    name: ClassVar[str] = "moon"
    paper: ClassVar[str] = "Li et al., Model-Contrastive Federated Learning, CVPR 2021"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)

    mu: float = hp(1.0, "weight of the contrast (mu)", low=0, off=0.0)
    tau: float = hp(0.5, "temperature (tau)", low=1e-3)
    head: str = hp(
        "projector",
        "what features are compared behind: a projection in the network, or nothing",
        choices=("projector", "none"),
        off="none",
    )
    hidden: int = hp(0, "width inside the projection (0: that of the features)", low=0)
    out: int = hp(256, "width of what the projection gives", low=1, quick=16)
    buffer: int = hp(1, "previous models that a client keeps", low=1)
    teacher: str = hp("eval", "mode of the other models", choices=("eval", "train"))

    # -- declarations --------------------------------------------------------------------------

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Put the projection before a classifier of its width."""
        if self.head == "projector":
            hidden = self.hidden or facts.width
            projector = nn.Sequential(
                nn.Linear(facts.width, hidden), nn.ReLU(), nn.Linear(hidden, self.out)
            )
            classifier = nn.Linear(self.out, facts.classes)
            replace_head(model, self.name, projector=projector, classifier=classifier)
        return model

    def init_client(self, params: Tree, facts: Facts) -> State:
        """Room for the previous models, of which there is none yet."""
        if self.mu == 0:
            return State()
        device = next((p.device for p in params.values()), None)
        room = {n: torch.zeros_like(t, device=device or "cpu") for n, t in facts.tensors.items()}
        places = (with_prefix(_place(i), map_tree(torch.clone, room)) for i in range(self.buffer))
        return State({n: t for place in places for n, t in place.items()}, {"known": 0})

    # -- client --------------------------------------------------------------------------------

    def start(self, ctx: Ctx, net: Net, data: Data) -> Tree:
        """The last model, which in a client's first round is the received one."""
        if self.mu == 0:
            return {}
        known = ctx.kept["known"] > 0
        last = under(_place(0), ctx.kept)
        return {n: torch.where(known, t, ctx.initial[n]) for n, t in last.items()}

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """The contrast of the batch's features."""
        if self.mu == 0 or ctx.phase != "model":
            return {}
        older = [under(_place(i), ctx.kept) for i in range(1, self.buffer)]
        by_batch = self.teacher == "train"
        seen = []
        for tensors in (ctx.initial, ctx.fixed, *older):
            then = net.at(tensors, by_batch=by_batch)
            seen.append(self._projected(then, then.features(out.x)))
        places = torch.arange(self.buffer, device=y.device)
        present = places < ctx.kept["known"].clamp_min(1)
        z = self._projected(net, out.z)
        return {"moon": self.mu * contrast(z, seen[0], seen[1:], self.tau, present).mean()}

    def _projected(self, net: Net, z: Tensor) -> Tensor:
        """What is compared."""
        if self.head == "none":
            return z
        projected: Tensor = net.call("head.projector", z)
        return projected

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """The model as it left training is kept; the oldest one is forgotten."""
        if self.mu == 0 or ctx.stage != "train":
            return Report()
        keep = with_prefix(_place(0), net.tensors)
        for i in range(1, self.buffer):
            keep |= with_prefix(_place(i), under(_place(i - 1), ctx.kept))
        return Report(keep={**keep, "known": ctx.kept["known"] + 1})


def _place(i: int) -> str:
    """Where the model of i + 1 participations ago is kept."""
    return f"previous/{i}"


def contrast(
    z: Tensor, towards: Tensor, away: Sequence[Tensor], tau: float, present: Tensor | None = None
) -> Tensor:
    """The term of each sample, from features [B, D]; `present` says which of `away` exist.

    >>> z = torch.tensor([[1.0, 0.0]])
    >>> contrast(z, z, [torch.tensor([[0.0, 1.0]])], 0.5)
    tensor([0.1269])
    """
    scores = torch.stack([cosine(z, other) / tau for other in (towards, *away)], dim=1)
    positive = torch.zeros_like(scores, dtype=torch.bool)
    positive[:, 0] = True
    if present is None:
        return infonce(scores, positive)
    return infonce(scores, positive, torch.cat([torch.ones_like(present[:1]), present]))
