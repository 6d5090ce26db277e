"""# FedAvgM: momentum at the server

The server takes what a round has changed for a gradient, and moves along a velocity of such changes
instead of the last one alone. The paper is Hsu, Qi and Brown, Measuring the Effects of
Non-Identical Data Distribution for Federated Visual Classification, 2019.

## The loss

The task's own. With the pseudo-gradient g = w_t - mean_k w_k, the server takes

    v <- beta v + g,   w_(t+1) = w_t - eta_s v      (`nesterov`: along g + beta v)

Momentum moves trained parameters alone; buffers take the plain mean, since a running variance that
is pushed by momentum may leave its range.

## When to use it

When rounds disagree, because few clients take part in each or their labels differ. In the long run
a step is 1 / (1 - beta) times FedAvg's: scale `lr` by 1 - beta when comparing.

## What crosses the wire

Nothing beside the model. The velocity stays at the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Method, State
from fedshift.tree import Tree


@dataclass(frozen=True)
class FedAvgM(Method):
    """Server momentum over rounds.

    >>> FedAvgM(beta=0.9, nesterov=True).nesterov
    True
    """

    name: ClassVar[str] = "fedavgm"
    paper: ClassVar[str] = (
        "Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated "
        "Visual Classification, 2019"
    )

    beta: float = hp(0.9, "momentum of the server (beta)", low=0, high=1, off=0.0)
    lr: float = hp(1.0, "learning rate of the server (eta_s)", low=0, off=1.0)
    nesterov: bool = hp(False, "Nesterov's form of momentum", off=False)

    def init_server(self, params: Tree, facts: Facts) -> State:
        """A velocity of zero."""
        return State({n: torch.zeros_like(p) for n, p in params.items()})

    def server_step(self, old: Tree, new: Tree, server: State) -> tuple[Tree, State]:
        """Move along the velocity."""
        moved, velocity = dict(new), {}
        for name, v in server.tensors.items():
            g = old[name] - new[name]
            velocity[name] = self.beta * v + g
            along = g + self.beta * velocity[name] if self.nesterov else velocity[name]
            moved[name] = old[name] - self.lr * along
        return moved, State(velocity)
