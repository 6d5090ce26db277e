"""# PartialFed: load a part of the global model, go on from the own rest

Not every layer of the mean model suits every client. At the start of a round each client loads only
some layers of it and goes on from its own version of the others. The paper is Sun, Huo, Yang and
Bai, PartialFed: Cross-Domain Personalized Federated Learning via Partial Initialization, NeurIPS
2021.

## The loss

The task's own. With `load` the set of layers that clients load, client k begins a round with

    w[l] = w_t[l] if l is in the set, else w_k[l]

where w_k is what it ended its last round with; before its first, everybody's initial model. This is
the paper's fixed strategy. The default loads everything but batch norms and the head; `but-norms`
loads the head too (and is FedBN), `all` is FedAvg, `none` is training alone, and paths of modules
joined by commas (`conv1,conv2`) name what is loaded: the bottom of a network, or its top.

## When to use it

When clients look different and each is to be served by a model of its own. Scores are of each
client's own model. Clients keep their part while they are away, however long.

## What crosses the wire

What clients load, both ways. The rest stays.

## Differences from the paper

- It averages all layers at the server, also those that nobody loads. No client that has taken part
  before ever sees these means; one that comes first in a later round would begin with them, and
  begins with the initial values here.
- Its adaptive strategy, which learns for each layer whether to load it, is not offered: temperature
  and schedule of that choice are not known to us, and no code was released.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedshift.errors import UnknownName
from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Method, Scope
from fedshift.net import tensors_of
from fedshift.parts.heads import check_head, of_head

SETS = ("but-norms-and-head", "but-norms", "all", "none")


@dataclass(frozen=True)
class PartialFed(Method):
    """A fixed set of layers comes from the server, the rest is the client's own.

    >>> PartialFed(load="conv1, conv2").layers
    ('conv1', 'conv2')
    """

    name: ClassVar[str] = "partialfed"
    paper: ClassVar[str] = (
        "Sun et al., PartialFed: Cross-Domain Personalized Federated Learning via Partial "
        "Initialization, NeurIPS 2021"
    )
    view: ClassVar[str] = "personal"

    load: str = hp(
        SETS[0],
        f"what clients load each round: {', '.join(SETS)}, or paths of modules joined by commas",
        off="all",
    )

    @property
    def layers(self) -> tuple[str, ...]:
        """The modules that `load` names; empty for a set that has a name of its own."""
        return () if self.load in SETS else tuple(p.strip() for p in self.load.split(","))

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Nothing changes, but what `load` names must be there."""
        if self.load == "but-norms-and-head":
            check_head(model, self.name)
        tensors = tensors_of(model)
        for layer in self.layers:
            if not any(n.startswith(f"{layer}.") for n in tensors):
                known = dict.fromkeys(n.rpartition(".")[0] for n in tensors)
                raise UnknownName("module with tensors", layer, (*SETS, *known))
        return model

    def scope(self, name: str, module: nn.Module) -> Scope:
        """What is not loaded is the client's own."""
        return Scope("both" if self._loads(name, module) else "kept")

    def _loads(self, name: str, module: nn.Module) -> bool:
        if self.load in ("all", "none"):
            return self.load == "all"
        if self.layers:
            return name.startswith(tuple(f"{layer}." for layer in self.layers))
        norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
        return not norm and not (self.load == "but-norms-and-head" and of_head(name))
