"""# FedDG-GA: clients that the mean serves worse than their own model weigh more

A client's own model is better on its data than the mean of all models. Where this gap is large, the
mean has not learnt what the client knows. So the server gives such clients more weight, round by
round, until gaps are alike. It goes with any method of the client's side: `feddg-ga+fedprox`. The
paper is Zhang et al., Federated Domain Generalization with Generalization Adjustment, CVPR 2023.

## The loss

The task's own. With a_k the weight of client k, 1 / K at first, w_k its model after a round and
w = sum_k a_k w_k, the gap G_k is the loss of w less that of w_k on client k's data, and

    a_k <- a_k + d_r (G_k - mean G) / max_j |G_j - mean G|         (`rule="paper"`)
    a_k <- a_k + d_r / K * G_k / max_j |G_j|                       (`rule="released"`)

after which a is cut to 0 to 1 and normalised. d_r falls evenly from `step` to 0 over the rounds.

The loss of w is known to a client when it next receives w, so it tells gaps then, and weights
follow one round late. Gaps are of those who took part in the round before and do so now; the
others' weights stay, and those present share among them what they had before.

The protocol's weights multiply a.

## When to use it

When a model must serve sites that it has not seen, and clients are domains of their own. Two more
passes over the data each round, without gradients.

## What crosses the wire

Up: two numbers, the gap, and the share of the rounds that is left (0 as long as there is no gap),
looked at one by one. Down: nothing beside the model.

## Differences from the released code

- It measures gaps on validation data, which methods do not see here, and by accuracy. Here they are
  differences of losses on the training data.
- It asks for the loss of the new mean in the round itself. Here there is one exchange a round.
- It does not centre gaps, and divides d_r by the number of its sources, 3 (`rule="released"`).
- In its first update, d_r is a little more than `step`. Here it is `step` in the first round.
- The paper divides by the largest gap, which may be 0; weights then stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Data, Method, Report, State, Uploads
from fedshift.parts import rows
from fedshift.parts.losses import data_loss
from fedshift.tree import Tree

if TYPE_CHECKING:
    from fedshift.net import Net

RULES = ("paper", "released")


@dataclass(frozen=True)
class FedDGGA(Method):
    """Weights of clients that follow the gap between the mean's loss and their own.

    >>> FedDGGA(rule="released").step
    0.2
    """

    name: ClassVar[str] = "feddg-ga"
    paper: ClassVar[str] = (
        "Zhang et al., Federated Domain Generalization with Generalization Adjustment, CVPR 2023"
    )
    content: ClassVar[dict[str, str]] = {"gap": "statistics", "left": "statistics"}

    step: float = hp(0.2, "how far weights move in the first round (d)", low=0, high=1, off=0.0)
    rule: str = hp("paper", "gaps less their mean, or as they are", choices=RULES)

    # -- server --------------------------------------------------------------------------------

    def init_server(self, params: Tree, facts: Facts) -> State:
        """A weight of 1 / K for every client."""
        clients = len(facts.clients)
        like = next(iter(params.values()), torch.zeros(()))
        a = like.new_full((clients,), 1.0 / clients, dtype=torch.float64)
        return State({"a": a}, rows.assign(facts.clients))

    def weights(self, uploads: Uploads, server: State) -> Tensor | None:
        """The protocol's weights times those that follow the gaps."""
        if "gap" not in uploads.extras:
            return None
        owners, a = rows.rows_of(server.numbers), self._moved(uploads, server)
        found = uploads.weights.to(a) * a[[owners[c] for c in uploads.clients]]
        return torch.where(found.sum() > 0, found, uploads.weights.to(a))

    def after(
        self, new: Tree, uploads: Uploads, server: State, net: Net, key: int
    ) -> tuple[Tree, State]:
        """Remember the weights."""
        if "gap" not in uploads.extras:
            return new, server
        return new, State({"a": self._moved(uploads, server)}, server.numbers)

    def _moved(self, uploads: Uploads, server: State) -> Tensor:
        """All weights after the round: of those who know their gap they move."""
        owners, a = rows.rows_of(server.numbers), server.tensors["a"]
        gaps, left = (uploads.extras[n].to(a) for n in ("gap", "left"))
        told = [k for k, known in enumerate((left > 0).tolist()) if known]
        if not told:
            return a
        at = [owners[uploads.clients[k]] for k in told]
        moved = adjusted(a[at], gaps[told], self.step * left.max(), self.rule)
        return rows.put({"a": a}, at, {"a": moved})["a"]

    # -- client --------------------------------------------------------------------------------

    def init_client(self, params: Tree, facts: Facts) -> State:
        """No loss yet, of no round."""
        like = next(iter(params.values()), torch.zeros(()))
        return State({"own": like.new_zeros(()), "when": torch.full((), -2, device=like.device)})

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """The gap of the round before, and the loss of the client's model of this one."""
        if self.step == 0 or ctx.stage != "train":
            return Report()
        mean, own = (
            data_loss(n, data, ctx.facts.task, ctx.samples, ctx.lr)
            for n in (net.at(ctx.initial), net)
        )
        known = ctx.kept["when"] == ctx.round - 1
        left = 1.0 - (ctx.round - 1).to(ctx.lr.dtype) / ctx.protocol.rounds
        told = {"gap": mean - ctx.kept["own"], "left": left}
        return Report(
            individual={n: torch.where(known, t, 0.0) for n, t in told.items()},
            keep={"own": own, "when": ctx.round.expand(())},
        )


def adjusted(a: Tensor, gaps: Tensor, step: float | Tensor, rule: str = "paper") -> Tensor:
    """Weights a [K] moved along gaps [K], cut to 0 to 1 and scaled to the sum that they had.

    >>> third, gaps = torch.full((3,), 1 / 3), torch.tensor([0.3, -0.1, 0.1])
    >>> adjusted(third, gaps, 0.2), adjusted(third, gaps, 0.2, "released")
    (tensor([0.5333, 0.1333, 0.3333]), tensor([0.3750, 0.2917, 0.3333]))
    """
    if rule == "paper":
        gaps = gaps - gaps.mean()
    else:
        step = step / len(a)
    tiny = torch.finfo(a.dtype).tiny
    total = a.sum()
    moved = (a + step * total * gaps / gaps.abs().max().clamp_min(tiny)).clamp(0.0, 1.0)
    return moved * (total / moved.sum().clamp_min(tiny))
