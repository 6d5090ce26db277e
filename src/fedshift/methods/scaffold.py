"""SCAFFOLD (Karimireddy et al., ICML 2020): control variates cancel the drift of clients.

Every local gradient becomes g + c - c_k. After T steps, c_k+ = c_k - c + (w_t - w_k) / (T eta) (the
paper's option II); the server adds (participants / clients) * mean (c_k+ - c_k) to c. Down: c. Up:
c_k+ - c_k. Both are as large as the trained parameters, which they cover alone (not buffers).

Option II takes (w_t - w_k) / (T eta) for the mean gradient. That holds for plain SGD; with local
momentum, weight decay, clipping or Adam it is something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Data, Method, Report, State, Uploads
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
        span = ctx.steps * ctx.lr
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
