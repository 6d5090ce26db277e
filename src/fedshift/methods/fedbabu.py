"""# FedBABU: train the body together, tune the head at home

A head that many clients train ends up serving labels that no one client has. So the head stays as
it was drawn at the start, the same for everybody, while the body is trained and averaged; at the
end each client tunes the network on its own data. The paper is Oh, Kim and Yun, FedBABU: Toward
Enhanced Representation for Federated Image Classification, ICLR 2022.

## The loss

The task's own. In federated rounds the optimizer moves the body alone: the head gets neither
gradient nor momentum nor weight decay. Then come `tune` epochs of local training, at the learning
rate of the last round, in which all of the network moves (`tunes="all"`), or the head alone, or
the body alone.

## When to use it

When clients' labels differ and each is to be served by a model of its own. Scores before the tuning
are of the common body under the untrained head, which is a number of its own interest; those of the
last line are of the tuned models. Choose `tune` by validation scores.

## What crosses the wire

The body, both ways. Everybody draws the same head from the seed of the run.

## Differences from the released code

- It divides the rate by 10 after one half and three quarters of the rounds: a matter of the
  protocol here, like its momentum.
- Its rate of 0 for the head leaves plain SGD's weight decay without effect, too; here that holds
  for every optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Method, Scope, Stage
from fedshift.parts.heads import check_head, of_head
from fedshift.protocol import Protocol
from fedshift.tree import Tree

TUNE = "tune"


@dataclass(frozen=True)
class FedBABU(Method):
    """A common body under a fixed head, tuned at the end.

    >>> [(stage.name, stage.rounds) for stage in FedBABU().stages(Protocol(rounds=3))]
    [('train', 3), ('tune', 5)]
    """

    name: ClassVar[str] = "fedbabu"
    paper: ClassVar[str] = (
        "Oh et al., FedBABU: Toward Enhanced Representation for Federated Image Classification, "
        "ICLR 2022"
    )
    view: ClassVar[str] = "personal"

    tune: int = hp(5, "epochs of the final tuning (0: none)", low=0)
    tunes: str = hp("all", "what the final tuning moves", choices=("all", "head", "body"))

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Nothing changes, but there must be a head."""
        check_head(model, self.name)
        return model

    def scope(self, name: str, module: nn.Module) -> Scope:
        """The head never travels; each trip begins with the one that was drawn."""
        return Scope("work") if of_head(name) else Scope()

    def stages(self, protocol: Protocol) -> tuple[Stage, ...]:
        """Training, then epochs of tuning by everyone, each of which is scored."""
        train = Stage("train", protocol.rounds)
        if self.tune == 0:
            return (train,)
        return train, Stage(TUNE, self.tune, program="tune", everyone=True, epochs=1)

    def correct(self, grads: Tree, params: Tree, ctx: Ctx) -> Tree:
        """Without an entry here a tensor is not touched by the optimizer at all."""
        moves = self.tunes if ctx.stage == TUNE else "body"
        if moves == "all":
            return grads
        return {n: g for n, g in grads.items() if of_head(n) == (moves == "head")}
