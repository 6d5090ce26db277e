"""# SCAFFOLD: control variates against drift

Each client knows how its gradients differ from everybody's, and takes the difference out of each
step, so that many local steps go where one global step would. The paper is Karimireddy, Kale,
Mohri, Reddi, Stich and Suresh, SCAFFOLD: Stochastic Controlled Averaging for Federated Learning,
ICML 2020.

## The loss

The task's own. Every local gradient becomes g + c - c_k. After T steps of rate eta,

    c_k+ = c_k - c + (w_t - w_k) / (T eta)      (the paper's option II)

and the server adds (participants / clients) * mean (c_k+ - c_k) to c. Variates cover the trained,
shared parameters alone, no buffers.

## When to use it

When labels or tasks differ, clients take many plain SGD steps, and the same clients come back
often: a variate is of the round in which its client last took part.

## What crosses the wire

Down: c. Up: c_k+ - c_k, of which the server needs the mean. Both are as large as the trained
parameters, so that both ways double. Clients keep c_k.

## Differences from the paper

Option II takes (w_t - w_k) / (T eta) for the mean gradient, which holds for plain SGD. With local
momentum a gradient moves the model by up to 1 / (1 - momentum) times as much, so T is replaced by
the sum of the weights that the gradients have in the displacement (the normaliser of FedNova, Wang
et al. 2020); without it the variates are too large and the method diverges. With weight decay,
clipping, Adam, or momentum kept over rounds the estimate is rougher.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Data, Method, Report, State, Uploads
from fedshift.protocol import Protocol
from fedshift.tree import Tree

if TYPE_CHECKING:
    from fedshift.net import Net


@dataclass(frozen=True)
class Scaffold(Method):
    """Drift-corrected local steps.

    >>> Scaffold(lr=1.0).lr
    1.0
    """

    name: ClassVar[str] = "scaffold"
    paper: ClassVar[str] = (
        "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, "
        "ICML 2020"
    )

    lr: float = hp(1.0, "learning rate of the server (eta_g)", low=0)

    def init_server(self, params: Tree, facts: Facts) -> State:
        """c = 0."""
        return State({n: torch.zeros_like(p) for n, p in params.items()})

    def init_client(self, params: Tree, facts: Facts) -> State:
        """c_k = 0."""
        return State({n: torch.zeros_like(p) for n, p in params.items()})

    def broadcast(self, server: State, client: str, round: int) -> State:
        """c."""
        return server

    def correct(self, grads: Tree, params: Tree, ctx: Ctx) -> Tree:
        """g + c - c_k."""
        c, own = ctx.received, ctx.kept
        return {n: g + c[n] - own[n] if n in c else g for n, g in grads.items()}

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """The change of c_k goes up, the new c_k is kept."""
        span = ctx.lr * effective_steps(ctx.steps, ctx.protocol).to(ctx.lr.dtype)
        now = net.tensors
        change = {n: (ctx.initial[n] - now[n]) / span - c for n, c in ctx.received.items()}
        return Report(mean=change, keep={n: ctx.kept[n] + d for n, d in change.items()})

    def combine_extra(self, name: str, stacked: Tensor, weights: Tensor) -> Tensor:
        """Control variates take the plain mean, whatever weights the models have."""
        return stacked.mean(dim=0)

    def server_step(self, old: Tree, new: Tree, server: State) -> tuple[Tree, State]:
        """w + eta_g (mean - w), for the trained parameters."""
        if self.lr == 1.0:
            return new, server
        moved = {n: old[n] + self.lr * (new[n] - old[n]) for n in server.tensors}
        return {**new, **moved}, server

    def after(
        self, new: Tree, uploads: Uploads, server: State, net: Net, key: int
    ) -> tuple[Tree, State]:
        """c moves by the mean change, scaled by the share of clients that took part."""
        share = len(uploads.clients) / uploads.total
        change = uploads.combined
        return new, State({n: c + share * change[n] for n, c in server.tensors.items()})


def effective_steps(steps: Tensor, protocol: Protocol) -> Tensor:
    """The sum of the weights that T gradients have in the displacement of SGD with momentum.

    >>> effective_steps(torch.tensor(2), Protocol(momentum=0.5))  # the first 1 + 0.5, the second 1
    tensor(2.5000, dtype=torch.float64)
    """
    beta = protocol.momentum if protocol.optimizer == "sgd" else 0.0
    if beta == 0.0:
        return steps
    first = beta**2 if protocol.nesterov else beta  # Nesterov's form is one step ahead
    count = steps.double()  # a power of whole numbers would be of float32
    past = first * (1.0 - beta**count) / (1.0 - beta)
    return (count - past) / (1.0 - beta)
