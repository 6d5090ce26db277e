"""# FPL: several prototypes of a class, one for each kind of client

Where clients look different, the mean of a class over all of them is dominated by the domain that
most clients come from. So the server clusters the clients' prototypes of each class, without being
told how many clusters there are, and sends all cluster means. Features are contrasted with them,
clusters of the own class against those of the others, and pulled to the plain mean of the own
class's clusters, in which a rare domain weighs as much as a common one. The paper is Huang, Ye,
Shi, Li and Du, Rethinking Federated Learning with Domain Shift: A Prototype View, CVPR 2023.

## The loss

With the features z of a sample, its label y, cluster prototypes p and the mean P_y of those of y:

    CE + contrast * mean_i InfoNCE_i + regression * mean_i MSE(z_i, P_{y_i}),

    InfoNCE = -log( sum_{p of class y} e^{cos(z, p) / tau} / sum_{all p} e^{cos(z, p) / tau} )

A sample whose class has no prototype adds 0. After training, a client's prototype of a class is the
mean of z over its samples of the class; clusters are FINCH's on cosines, at the coarsest level that
has more than one of them.

## When to use it

When one model has to serve many clients of few domains, unevenly many of each. It needs several
clients of a domain to show more than a mean: with two or three clients every class has one cluster.
Gradients of the contrast grow as 1 / tau: with the default keep the learning rate small (0.01 in
the paper), or raise `tau`.

## What crosses the wire

Up: a mean feature for each class and whether there is one, which the server must see client by
client, so that secure aggregation is out. Down, from the second round on: up to half as many
prototypes for each class as there are clients (what is not used is zero). The server keeps every
client's last prototypes; those of clients that a round leaves out still count.

## Differences from the released code

- It takes features for prototypes from the training passes of the last epoch, while the model still
  moves: `prototypes="last-epoch"`. Here they come from a pass of their own in evaluation mode.
- It exponentiates cosines over tau, which in float32 overflows below tau = 0.0113; here logarithms
  are summed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Data, Method, Report, Scope, State, Uploads
from fedshift.parts import finch, prototypes, rows
from fedshift.parts.contrast import cosine, infonce
from fedshift.parts.labels import hard
from fedshift.tree import Tree, pick

if TYPE_CHECKING:
    from fedshift.net import Net, Output

SUMS = "fpl_sums"
_HELD = (
    "own",
    "has",
)  # each client's last prototypes [K, C, D], and which of them there are [K, C]
_SENT = ("clusters", "present")  # cluster means [C, M, D], and which of them there are [C, M]


@dataclass(frozen=True)
class FPL(Method):
    """Clustered prototypes to contrast with, and their mean to be pulled to.

    >>> FPL(regression=0.0).tau
    0.02
    """

    name: ClassVar[str] = "fpl"
    paper: ClassVar[str] = (
        "Huang et al., Rethinking Federated Learning with Domain Shift: A Prototype View, CVPR 2023"
    )
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    content: ClassVar[dict[str, str]] = dict.fromkeys((*_HELD, *_SENT), "statistics")

    contrast: float = hp(1.0, "weight of the contrast with cluster prototypes", low=0, off=0.0)
    regression: float = hp(1.0, "weight of the pull to the mean prototype", low=0, off=0.0)
    tau: float = hp(0.02, "temperature of the contrast (tau)", low=1e-4)
    prototypes: str = hp(
        "after",
        "when prototypes are taken: after training, or on the way",
        choices=prototypes.GATHERED,
    )

    @property
    def _idle(self) -> bool:
        return self.contrast == 0 and self.regression == 0

    @property
    def _on_the_way(self) -> bool:
        return self.prototypes == "last-epoch" and not self._idle

    # -- declarations --------------------------------------------------------------------------

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Attach what gathers features on the way."""
        if self._on_the_way:
            model.add_module(SUMS, prototypes.ClassSums(facts.classes, facts.width))
        return model

    def scope(self, name: str, module: nn.Module) -> Scope:
        """What a trip gathers is the trip's."""
        return Scope("work", "frozen") if name.startswith(f"{SUMS}.") else Scope()

    # -- server --------------------------------------------------------------------------------

    def init_server(self, params: Tree, facts: Facts) -> State:
        """Room for every client's prototypes."""
        if self._idle:
            return State()
        like = next(iter(params.values()), torch.zeros(()))
        count = len(facts.clients)
        held = {
            "own": like.new_zeros(count, facts.classes, facts.width),
            "has": like.new_zeros(count, facts.classes),
        }
        return State(held, rows.assign(facts.clients))

    def broadcast(self, server: State, client: str, round: int) -> State:
        """The clusters, once there are any."""
        return State(pick(server.tensors, [n for n in _SENT if n in server.tensors]))

    def after(
        self, new: Tree, uploads: Uploads, server: State, net: Net, key: int
    ) -> tuple[Tree, State]:
        """Cluster what came together with what others sent before."""
        if "own" not in uploads.extras:
            return new, server
        places = rows.rows_of(server.numbers)
        came = pick(uploads.extras, _HELD)
        held = rows.put(pick(server.tensors, _HELD), [places[c] for c in uploads.clients], came)
        clusters, present = clustered(held["own"], held["has"])
        return new, State({**held, "clusters": clusters, "present": present}, server.numbers)

    # -- client --------------------------------------------------------------------------------

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """Contrast and regression of the batch's features."""
        if self._idle or ctx.phase != "model":
            return {}
        if self._on_the_way:
            net.call(SUMS, out.z, y, prototypes.in_last_epoch(ctx))
        if "clusters" not in ctx.received:
            return {}
        clusters, present = ctx.received["clusters"], ctx.received["present"]
        z, label, terms = out.z.to(clusters.dtype), hard(y), {}
        if self.contrast:
            terms["contrast"] = (
                self.contrast * contrast(z, label, clusters, present, self.tau).mean()
            )
        if self.regression:
            terms["regression"] = self.regression * regression(z, label, clusters, present).mean()
        return {f"fpl_{name}": term for name, term in terms.items()}

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """The client's prototypes."""
        if self._idle or ctx.stage != "train":
            return Report()
        if self._on_the_way:
            total, count = (net.tensors[f"{SUMS}.{n}"] for n in ("total", "count"))
        else:
            facts = ctx.facts
            total, count = prototypes.over_data(net, data, facts.classes, facts.width, ctx.lr)
        own = {"own": prototypes.means(total, count), "has": (count > 0).to(count.dtype)}
        return Report(individual=own)


def clustered(own: Tensor, has: Tensor) -> tuple[Tensor, Tensor]:
    """Cluster means of each class [C, M, D] from clients' prototypes [K, C, D], and which exist.

    `has` [K, C] says which prototypes there are. A cluster of several has two members at least, so
    that M = K / 2 places are enough.
    """
    clients, classes, width = own.shape
    found = own.new_zeros(classes, max(1, clients // 2), width)
    present = own.new_zeros(found.shape[:2])
    for c, here in enumerate((has.T > 0).cpu()):
        if here.any():
            rows_here = own[here.to(own.device), c]
            means = finch.cluster_means(rows_here, finch.coarsest(rows_here))
            found[c, : len(means)], present[c, : len(means)] = means, 1.0
    return found, present


def contrast(z: Tensor, y: Tensor, clusters: Tensor, present: Tensor, tau: float) -> Tensor:
    """InfoNCE of each sample against all clusters, those of its class as positives, [B].

    >>> clusters = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    >>> contrast(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), clusters, torch.ones(2, 1), 0.5)
    tensor([0.1269])
    """
    classes, most, width = clusters.shape
    scores = cosine(z[:, None], clusters.reshape(1, -1, width)) / tau
    owner = torch.arange(classes * most, device=y.device) // most
    return infonce(scores, y[:, None] == owner, (present > 0).reshape(-1))


def regression(z: Tensor, y: Tensor, clusters: Tensor, present: Tensor) -> Tensor:
    """The mean squared difference of each sample from the mean of its class's clusters, [B].

    >>> clusters = torch.tensor([[[1.0, 1.0], [3.0, 3.0], [0.0, 0.0]]])
    >>> regression(torch.zeros(1, 2), torch.tensor([0]), clusters, torch.tensor([[1.0, 1.0, 0.0]]))
    tensor([4.])
    """
    count = present.sum(dim=1)
    target = (clusters * present[..., None]).sum(dim=1) / count.clamp_min(1.0)[:, None]
    apart = (z - target.index_select(0, y)).square().mean(dim=-1)
    return apart * (count > 0).to(z.dtype).index_select(0, y)
