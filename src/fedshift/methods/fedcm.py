"""# FedCM: client-level momentum

Momentum is kept at the server and spent at the clients. The server turns the last round into one
direction, the mean step that clients took; in the next round every client mixes it into each of its
gradients. So the few clients of a round still move as all of them would. The paper is Xu, Wang,
Wang and Yao, FedCM: Federated Learning with Client-level Momentum, 2021.

## The step

With the gradient g, and Delta from the server (0 at first):

    local:  w <- w - eta (alpha g + (1 - alpha) Delta)
    server: Delta = mean_k (w_t - w_k) / (eta T_k),  w <- w_t + eta_g mean_k (w_k - w_t)

where client k took T_k steps. Every parameter that is trained and shared has a direction, also
those of attached networks (FedBR's head); buffers and what a client keeps have none.

## When to use it

When few of many clients take part in a round, or their labels differ much. Small alpha makes rounds
smooth and slow; `alpha=1` is FedAvg.

## What crosses the wire

Down: Delta, as large as the trained parameters, so that the way down doubles. Up: one number, the
length of the client's way (rate times steps).

## Differences from the released code

- In the paper's first round Delta is 0, so steps are alpha times as long as later.
  `cold="plain"` takes full steps until there is a direction, as FedBR's code for FedCM does. (That
  code also always mixes samples: `fedcm+mixup`.)
- Codes divide by one number of steps for all clients; here each client's way is divided by its own.
  Where all take equally many, it is the same.
- With local momentum, clipping or Adam, Delta is the mean of the steps that were taken, no longer
  of gradients. Networks that another method trains at a rate of its own (FRAug) get a Delta that is
  off by the ratio of that rate to the protocol's.
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
        way = uploads.extras["way"].squeeze(1)
        share = torch.where(way > 0, uploads.weights / way, 0.0)  # at a rate of 0 nobody moved
        went = {n: old - uploads.model[n] for n, old in before.items()}
        return new, State(
            {n: torch.tensordot(share.to(d.dtype), d, dims=1) for n, d in went.items()}, {"warm": 1}
        )
