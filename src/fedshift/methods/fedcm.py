"""FedCM (Xu et al., 2021): every local step carries on in the direction all clients last went.

## The idea

Momentum is kept at the server and spent at the clients. The server turns the last round into one
direction, the mean step that clients took; in the next round every client mixes it into each of its
gradients. Few clients of a round then still move as all of them would.

## The step

With the gradient g, and Delta from the server (0 at first):

    local:  w <- w - eta (alpha g + (1 - alpha) Delta)
    server: Delta = mean_k (w_t - w_k) / (eta_k T_k),  w <- w_t + eta_g mean_k (w_k - w_t)

where client k took T_k steps of rate eta_k. Trained, shared parameters have a direction, those of
attached networks too; buffers and what a client keeps have none.

## When to use it

When few of many clients take part in a round, or their labels differ much. `alpha=1` is FedAvg.
Small alpha gives smooth, slow rounds.

## What crosses the wire

Down: Delta, as large as the trained parameters, so that the way down doubles. Up: one number, the
length of the client's way (rate times steps).

## Differences from released codes

* The paper's first round, with Delta = 0, takes steps of alpha times the rate. `cold="plain"` takes
  full steps as long as there is no direction, as FedBR's code for FedCM does.
* Codes divide by a number of steps that is common to all clients; here each client's way is divided
  by its own, which is the same where they are equal.
* Under local momentum, clipping or Adam, Delta is made of the steps that were taken, no longer of
  gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Data, Method, Report, State, Uploads
from fedshift.tree import Tree, pick, under, with_prefix

if TYPE_CHECKING:
    from fedshift.net import Net


@dataclass(frozen=True)
class FedCM(Method):
    """Local gradients mixed with the last global direction.

    >>> FedCM(alpha=0.5).alpha
    0.5
    """

    name: ClassVar[str] = "fedcm"
    paper: ClassVar[str] = "Xu et al., FedCM: Federated Learning with Client-level Momentum, 2021"

    alpha: float = hp(
        0.1, "weight of a client's own gradient (alpha)", low=0, high=1, off=1.0, quick=0.5
    )
    lr: float = hp(1.0, "learning rate of the server (eta_g)", low=0, off=1.0)
    cold: str = hp("scaled", "steps while there is no direction yet", choices=("scaled", "plain"))

    def init_server(self, params: Tree, facts: Facts) -> State:
        """Delta = 0."""
        return State({n: torch.zeros_like(p) for n, p in params.items()}, {"warm": 0})

    def broadcast(self, server: State, client: str, round: int) -> State:
        """Delta, and whether it is one."""
        return server

    def correct(self, grads: Tree, params: Tree, ctx: Ctx) -> Tree:
        """alpha g + (1 - alpha) Delta."""
        own = torch.full_like(ctx.lr, self.alpha)
        if self.cold == "plain":
            own = torch.where(ctx.received["warm"] > 0, own, torch.ones_like(own))
        last = ctx.received
        return {n: own * g + (1.0 - own) * last[n] if n in last else g for n, g in grads.items()}

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """How long the client's way was."""
        return Report(individual={"way": (ctx.lr * ctx.steps).reshape(1)})

    def server_step(self, old: Tree, new: Tree, server: State) -> tuple[Tree, State]:
        """w + eta_g (mean - w); the old tensors stay until the direction is made of them."""
        before = pick(old, server.tensors)
        moved = {n: old[n] + self.lr * (new[n] - old[n]) for n in before} if self.lr != 1.0 else {}
        return {**new, **moved}, State({**server.tensors, **with_prefix("old", before)})

    def after(
        self, new: Tree, uploads: Uploads, server: State, net: Net, key: int
    ) -> tuple[Tree, State]:
        """Delta: the mean of each client's way over its length."""
        before = under("old", server.tensors)
        if not before:  # nobody has trained in this round
            return new, server
        share = uploads.weights / uploads.extras["way"].squeeze(1)
        way = {n: old - uploads.model[n] for n, old in before.items()}
        return new, State(
            {n: torch.tensordot(share.to(d.dtype), d, dims=1) for n, d in way.items()}, {"warm": 1}
        )
