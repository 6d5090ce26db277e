"""# FedEnsemble: the clients' models predict together

The mean of models is not the mean of what they say. Here training is FedAvg's, but the server keeps
the model that each client sent last, and all of them predict together. It is a baseline of FedGen
(Zhu, Hong and Zhou, Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML
2021), which cites Lin et al., Ensemble Distillation for Robust Model Fusion in Federated Learning,
NeurIPS 2020; nothing is distilled.

## The loss

The task's own. With o_k(x) the logits of the model that client k sent last, the prediction is the
class with the largest

    sum_k o_k(x)                 (`vote="logits"`)
    sum_k softmax(o_k(x))        (`vote="probabilities"`)

over the clients that have taken part so far. The two differ: a client that is very sure outvotes
others by its logits, not by its probabilities. Logits of (9, 0, 0), (0, 3, 0) and (0, 3, 0) make
the first class, or the second.

## When to use it

As an upper mark for what averaging loses, with few clients and a small network. A prediction costs
as many forwards as there are clients, and memory as many models; where clients train stacked, each
row of the stack holds them all, so take `--engine loop`, or a small chunk, for more than some ten
clients.

## What crosses the wire

Up: the model, looked at one by one. Down: the model, and the last models of all clients, so that
sites predict with them: every client sees every other's model. Who only wants the prediction at the
server needs none of that.

## Differences from the released code

- There, clients that have not taken part yet predict with the initial network. Here they are left
  out.
- It needs whole models. With a method that keeps tensors at the clients it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from fedshift.errors import CannotCombine
from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Method, Scope, State, Uploads
from fedshift.net import tensors_of
from fedshift.parts import rows
from fedshift.tree import Tree, row

if TYPE_CHECKING:
    from fedshift.net import Net

MEMBERS = "fedensemble"
VOTES = ("logits", "probabilities")
_OF, _PRESENT = f"{MEMBERS}.members.", f"{MEMBERS}.present"


@dataclass(frozen=True)
class FedEnsemble(Method):
    """FedAvg whose clients' last models predict together.

    >>> FedEnsemble(vote="probabilities").vote
    'probabilities'
    """

    name: ClassVar[str] = "fedensemble"
    paper: ClassVar[str] = (
        "Baseline of Zhu et al., Data-Free Knowledge Distillation for Heterogeneous Federated "
        "Learning, ICML 2021"
    )

    vote: str = hp("logits", "what is summed over models", choices=VOTES)

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Attach room for a model of each client, at first the initial one."""
        model.add_module(MEMBERS, Members(model, len(facts.clients)))
        return model

    def scope(self, name: str, module: nn.Module) -> Scope:
        """The server sets the clients' models, and nobody trains them."""
        return Scope("down", "frozen") if name.startswith(f"{MEMBERS}.") else Scope()

    def init_server(self, params: Tree, facts: Facts) -> State:
        """The clients' rows."""
        return State(numbers=rows.assign(facts.clients))

    def after(
        self, new: Tree, uploads: Uploads, server: State, net: Net, key: int
    ) -> tuple[Tree, State]:
        """Put what came in the place of what the same clients sent before."""
        if not uploads.model:
            return new, server
        held = {n: t for n, t in new.items() if n.startswith(_OF)}
        came = {n: uploads.model.get(n[len(_OF) :]) for n in held}
        missing = [n[len(_OF) :] for n, t in came.items() if t is None]
        if missing:
            raise CannotCombine(
                f"'{self.name}' needs whole models, and '{missing[0]}' is not among what clients "
                "send: leave out the method that keeps it"
            )
        owners = rows.rows_of(server.numbers)
        at = [owners[c] for c in uploads.clients]
        present = {_PRESENT: new[_PRESENT]}
        held = rows.put(held, at, {n: t for n, t in came.items() if t is not None})
        held |= rows.put(present, at, {_PRESENT: present[_PRESENT].new_ones(len(at))})
        return {**new, **held}, server

    def predict(self, net: Net, x: Tensor, view: str) -> Tensor:
        """What the models say together, as logits; before the first round, the initial network."""
        members = {n[len(_OF) :]: t for n, t in net.tensors.items() if n.startswith(_OF)}
        present = net.tensors[_PRESENT]
        weights = torch.where(present.any(), present, 1.0)
        logits = torch.stack([net.at(row(members, k))(x) for k in range(len(present))])
        return together(logits, weights / weights.sum(), self.vote)


class Members(nn.Module):
    """Copies of a model's tensors, stacked under their own names, and whose have come [K]."""

    present: Tensor

    def __init__(self, model: nn.Module, clients: int) -> None:
        super().__init__()
        self.register_buffer("present", torch.zeros(clients))
        self.members = nn.Module()
        for name, tensor in tensors_of(model).items():
            *path, last = name.split(".")
            place = self.members
            for part in path:
                if part not in dict(place.named_children()):
                    place.add_module(part, nn.Module())
                place = place.get_submodule(part)
            stacked = tensor.detach().expand(clients, *tensor.shape).clone()
            place.register_buffer(last, stacked)


def together(logits: Tensor, weights: Tensor, vote: str) -> Tensor:
    """What models with weights [K] say together: logits [K, B, C] to [B, C].

    >>> three = torch.tensor([[[9.0, 0, 0]], [[0, 3.0, 0]], [[0, 3.0, 0]]])
    >>> [together(three, torch.ones(3) / 3, vote).argmax().item() for vote in VOTES]
    [0, 1]
    """
    weights = weights.to(logits.dtype)[:, None, None]
    if vote == "logits":
        return (weights * logits).sum(dim=0)
    return torch.logsumexp(weights.log() + logits.log_softmax(dim=2), dim=0)
