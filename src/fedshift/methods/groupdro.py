"""# GroupDRO: clients with high losses weigh more

A mean over clients may serve some of them badly. So every client tells its loss on the model that
it received, and the server moves weight towards those whose loss is high: it trains for the worst
mixture of clients instead of their mean. The papers are Sagawa et al., Distributionally Robust
Neural Networks for Group Shifts, ICLR 2020, whose update of weights this is with clients for
groups, and Mohri, Sivek and Suresh, Agnostic Federated Learning, ICML 2019.

## The loss

The task's own. With l_k the loss that client k told and q_k its weight, 1 / K at first, in each
round

    q_k <- q_k exp(eta l_k),   normalised,        w <- sum_k q_k w_k      (`rule="exponential"`)
    q   <- projection onto the simplex of q + eta l                       (`rule="projection"`)

The protocol's weights multiply q, so that with `weights="samples"` of the protocol q begins at the
shares of samples. Of those who are absent q stays as it is; those present share among them what
they had before.

`losses="first-step"` is the loss of the round's first batch, in train mode; `losses="data"` that
of the received model over all of the client's data, in eval mode, at the cost of one more pass.
Agnostic federated learning is `rule="projection"`, `losses="data"` and one local step a round.

## When to use it

When the worst client matters more than the mean. Weights never go back by themselves: with the
exponential rule, as long as losses stay apart, q drifts to one client, the faster the larger eta.
Losses of (1, 2, 3) give weights of (0.330, 0.333, 0.337) after one round at eta = 0.01 and (0.09,
0.24, 0.67) after a hundred. A client whose labels are wrong is taken for one that needs help.

## What crosses the wire

Up: one number, looked at one by one. Down: nothing beside the model.

## Differences from the released code

- The published baseline of FedBR is in its code this rule, Sagawa's, with Mixup always on:
  `groupdro+mixup`.
- There, weights belong to places that clients take in turn, not to clients. Here they are the
  clients' own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from fedshift import task
from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Data, Method, Report, Scope, State, Uploads
from fedshift.parts import rows
from fedshift.parts.losses import data_loss
from fedshift.tree import Tree

if TYPE_CHECKING:
    from fedshift.net import Net, Output

FIRST = "groupdro_first"


@dataclass(frozen=True)
class GroupDRO(Method):
    """Weights of clients that grow with their losses.

    >>> GroupDRO(rule="projection", losses="data", eta=0.1).rule
    'projection'
    """

    name: ClassVar[str] = "groupdro"
    paper: ClassVar[str] = (
        "Sagawa et al., Distributionally Robust Neural Networks for Group Shifts, ICLR 2020; "
        "Mohri et al., Agnostic Federated Learning, ICML 2019"
    )
    content: ClassVar[dict[str, str]] = {"loss": "statistics"}

    eta: float = hp(0.01, "how fast weights follow losses (eta)", low=0, off=0.0)
    rule: str = hp(
        "exponential", "how weights follow losses", choices=("exponential", "projection")
    )
    losses: str = hp(
        "first-step",
        "a client's loss on the received model: of its first batch, or of all its data",
        choices=("first-step", "data"),
    )

    @property
    def _watches(self) -> bool:
        return self.eta > 0 and self.losses == "first-step"

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Attach what remembers the loss of the first batch."""
        if self._watches:
            model.add_module(FIRST, FirstLoss())
        return model

    def scope(self, name: str, module: nn.Module) -> Scope:
        """What remembers the loss begins every trip anew; all else as in FedAvg."""
        return Scope("work", "frozen") if name.startswith(f"{FIRST}.") else Scope()

    # -- server --------------------------------------------------------------------------------

    def init_server(self, params: Tree, facts: Facts) -> State:
        """A weight of 1 / K for every client."""
        clients = len(facts.clients)
        like = next(iter(params.values()), torch.zeros(()))
        q = like.new_full((clients,), 1.0 / clients, dtype=torch.float64)
        return State({"q": q}, rows.assign(facts.clients))

    def weights(self, uploads: Uploads, server: State) -> Tensor | None:
        """The protocol's weights times those that follow the losses."""
        if "loss" not in uploads.extras:
            return None
        at, q = self._moved(uploads, server)
        return uploads.weights.to(q) * q[at]

    def after(
        self, new: Tree, uploads: Uploads, server: State, net: Net, key: int
    ) -> tuple[Tree, State]:
        """Remember the weights."""
        if "loss" not in uploads.extras:
            return new, server
        return new, State({"q": self._moved(uploads, server)[1]}, server.numbers)

    def _moved(self, uploads: Uploads, server: State) -> tuple[list[int], Tensor]:
        """The rows of who took part, and all weights after the round."""
        owners, q = rows.rows_of(server.numbers), server.tensors["q"]
        at = [owners[c] for c in uploads.clients]
        losses = uploads.extras["loss"].to(q)
        if self.rule == "projection":
            here = projected(q[at] + self.eta * losses, q[at].sum())
        else:
            here = tilted(q[at], self.eta * losses)
        return at, rows.put({"q": q}, at, {"q": here})["q"]

    # -- client --------------------------------------------------------------------------------

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """No term of its own: the first batch's loss is remembered."""
        if self._watches and ctx.phase == "model":
            net.call(FIRST, task.loss(ctx.facts.task, out.logits, y).detach())
        return {}

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """The loss on the received model."""
        if self.eta == 0 or ctx.stage != "train":
            return Report()
        if self.losses == "data":
            value = data_loss(net.at(ctx.initial), data, ctx.facts.task, ctx.samples, ctx.lr)
        else:
            value = net.call(FIRST)
        return Report(individual={"loss": value})


class FirstLoss(nn.Module):
    """The first loss that is told in train mode; -1, which no loss is, as long as there was none.

    >>> first = FirstLoss()
    >>> [first(torch.tensor(loss)).item() for loss in (2.0, 1.0)]
    [2.0, 2.0]
    """

    value: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.tensor(-1.0))

    def forward(self, loss: Tensor | None = None) -> Tensor:
        """The loss that is remembered."""
        if self.training and loss is not None:
            self.value.copy_(torch.where(self.value < 0, loss.to(self.value.dtype), self.value))
        return self.value.clone()


def tilted(q: Tensor, by: Tensor) -> Tensor:
    """q exp(by), scaled to the sum that q had.

    >>> tilted(torch.full((3,), 1 / 3), 0.01 * torch.tensor([1.0, 2.0, 3.0]))
    tensor([0.3300, 0.3333, 0.3367])
    """
    new = q * torch.exp(by - by.max())
    return new * (q.sum() / new.sum())


def projected(v: Tensor, total: Tensor) -> Tensor:
    """The nearest point whose entries are not below zero and sum to `total` (above 0).

    All entries go down by one number, those that would fall below zero to zero: Duchi et al.,
    Efficient Projections onto the l1-Ball, ICML 2008.

    >>> projected(torch.tensor([1.0, 0.5, -1.0]), torch.tensor(1.0))
    tensor([0.7500, 0.2500, 0.0000])
    """
    high = v.sort(descending=True).values
    rank = torch.arange(1, len(v) + 1, device=v.device)
    down = (high.cumsum(0) - total) / rank
    return (v - down[(high > down).sum() - 1]).clamp_min(0.0)
