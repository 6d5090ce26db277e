"""# FedProto: prototypes travel, models stay

Each client has a model of its own, and they agree on one thing: where in the space of features each
class lies. Clients send the mean feature of each of their classes, the server sends back the mean
over clients, and training pulls features to it. The paper is Tan, Long, Liu, Zhou, Lu, Jiang and
Zhang, FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022.

## The loss

With the features z of a sample, its label y and the global prototypes P_c,

    CE + lam mean_i MSE(z_i, P_{y_i})

where MSE is the mean over the dimensions. A sample whose class has no prototype yet adds 0 and
counts in the mean. `distance="squared"` sums over the dimensions, `distance="l2"` is the root of
that, as the paper writes it. After training a client's prototype of a class is the mean of z over
its samples; the global one is the mean of the prototypes of the clients that have the class
(`weighted=True`: the mean over their samples). A class that nobody in a round has keeps its
prototype.

## When to use it

Where clients cannot share one model and little may travel. Scores are of each client's own model,
which says the class of the nearest prototype among the classes that the client has trained on
(`rule="nearest"`), or what its own head says (`rule="head"`). There is no model for others. With
`share_weights=True` the models are averaged too, as in some later comparisons.

## What crosses the wire

Up: for each class a mean feature and whether there is one; the server needs only their sums. Down:
the global prototypes. The model stays at the client, unless `share_weights` says otherwise.

## Differences from the released code

- It takes features for prototypes from the training passes of the last epoch, while the model still
  moves: `prototypes="last-epoch"`. Here they come from a pass of their own in evaluation mode.
- It reports both rules of prediction; which one a table shows has to be looked up.
- Papers that call their baseline FedProto may mean one that averages models: `share_weights=True`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Data, Method, Report, Scope, State, Uploads
from fedshift.parts import prototypes
from fedshift.parts.labels import hard, one_hot
from fedshift.tree import Tree

if TYPE_CHECKING:
    from fedshift.net import Net, Output

MODULE = "fedproto"
DISTANCES = ("mse", "squared", "l2")


@dataclass(frozen=True)
class FedProto(Method):
    """Own models that agree on prototypes.

    >>> FedProto(lam=0.5).rule
    'nearest'
    """

    name: ClassVar[str] = "fedproto"
    paper: ClassVar[str] = (
        "Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022"
    )
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    view: ClassVar[str] = "personal"
    content: ClassVar[dict[str, str]] = {"total": "statistics", "count": "statistics"}

    lam: float = hp(1.0, "weight of the pull to prototypes (lambda)", low=0, off=0.0)
    distance: str = hp("mse", "what is pulled at: mean, sum, or root of squares", choices=DISTANCES)
    rule: str = hp("nearest", "who says the class", choices=("nearest", "head"), off="head")
    share_weights: bool = hp(False, "average the models too", off=True)
    weighted: bool = hp(False, "clients count in a prototype by their samples of the class")
    prototypes: str = hp(
        "after",
        "when prototypes are taken: after training, or on the way",
        choices=prototypes.GATHERED,
    )

    @property
    def _idle(self) -> bool:
        """Whether nobody looks at prototypes."""
        return self.lam == 0 and self.rule == "head"

    @property
    def _on_the_way(self) -> bool:
        return self.prototypes == "last-epoch"

    # -- declarations --------------------------------------------------------------------------

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Attach the prototypes."""
        if not self._idle:
            model.add_module(MODULE, Prototypes(facts.classes, facts.width, self._on_the_way))
        return model

    def scope(self, name: str, module: nn.Module) -> Scope:
        """Prototypes come down; the classes that a client has seen, and its model, are its own."""
        if isinstance(module, prototypes.ClassSums):
            return Scope("work", "frozen")
        if isinstance(module, Prototypes):
            return Scope("kept" if name.endswith(".seen") else "down", "frozen")
        return Scope("both" if self.share_weights else "kept")

    # -- client --------------------------------------------------------------------------------

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """How far features are from the prototypes of their classes."""
        if self._idle or ctx.phase != "model":
            return {}
        net.call(MODULE, out.z, y, prototypes.in_last_epoch(ctx))
        if self.lam == 0:
            return {}
        label = hard(y)
        target, present = (net.tensors[f"{MODULE}.{n}"] for n in ("means", "present"))
        apart = distance(out.z.to(target.dtype), target.index_select(0, label), self.distance)
        return {"prototypes": self.lam * (present.index_select(0, label) * apart).mean()}

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """Sums over clients make the mean: of prototypes and ones, or of features and counts."""
        if self._idle or ctx.stage != "train":
            return Report()
        if self._on_the_way:
            total, count = (net.tensors[f"{MODULE}.sums.{n}"] for n in ("total", "count"))
        else:
            classes, width = net.tensors[f"{MODULE}.means"].shape
            total, count = prototypes.over_data(net, data, classes, width, ctx.lr)
        if not self.weighted:
            total, count = prototypes.means(total, count), (count > 0).to(count.dtype)
        return Report(sum={"total": total, "count": count})

    # -- server --------------------------------------------------------------------------------

    def after(
        self, new: Tree, uploads: Uploads, server: State, net: Net, key: int
    ) -> tuple[Tree, State]:
        """The global prototypes of the classes that came; others stay."""
        if "count" not in uploads.combined:
            return new, server
        total, count = uploads.combined["total"], uploads.combined["count"]
        old, present = new[f"{MODULE}.means"], new[f"{MODULE}.present"]
        here = count > 0
        moved = {
            f"{MODULE}.means": torch.where(here[:, None], prototypes.means(total, count), old),
            f"{MODULE}.present": torch.maximum(present, here.to(present.dtype)),
        }
        return {**new, **moved}, server

    # -- prediction ----------------------------------------------------------------------------

    def predict(self, net: Net, x: Tensor, view: str) -> Tensor:
        """Less the distance from each prototype that counts, or what the head says."""
        if self.rule == "head":
            return net(x)
        z = net.features(x)
        means, present, seen = (net.tensors[f"{MODULE}.{n}"] for n in ("means", "present", "seen"))
        return torch.where(present.any(), nearness(z, means, present, seen), net.head(z))


class Prototypes(nn.Module):
    """Global prototypes, which of them there are, and the classes that this client has seen."""

    means: Tensor
    present: Tensor
    seen: Tensor

    def __init__(self, classes: int, width: int, gather: bool) -> None:
        super().__init__()
        self.register_buffer("means", torch.zeros(classes, width))
        self.register_buffer("present", torch.zeros(classes))
        self.register_buffer("seen", torch.zeros(classes))
        self.sums = prototypes.ClassSums(classes, width) if gather else None

    def forward(self, z: Tensor, y: Tensor, now: Tensor) -> None:
        """Note the classes of a batch, and their features if it is time."""
        if self.training:
            here = one_hot(hard(y), len(self.seen), self.seen).amax(dim=0)
            self.seen.copy_(torch.maximum(self.seen, here))
        if self.sums is not None:
            self.sums(z, y, now)


def distance(z: Tensor, target: Tensor, kind: str = "mse") -> Tensor:
    """How far rows are apart, [B].

    >>> [distance(torch.zeros(1, 4), torch.ones(1, 4), kind).item() for kind in DISTANCES]
    [1.0, 4.0, 2.0]
    """
    if kind == "l2":
        root: Tensor = torch.linalg.vector_norm(z - target, dim=-1)
        return root
    squares = (z - target).square()
    return squares.mean(dim=-1) if kind == "mse" else squares.sum(dim=-1)


def nearness(z: Tensor, means: Tensor, present: Tensor, seen: Tensor) -> Tensor:
    """Less the squared distances [B, classes], minus infinity for classes that do not count.

    Those count that are there and that the client has seen; all that are there, if it saw none.

    >>> means, ones = torch.tensor([[0.0], [1.0], [3.0]]), torch.ones(3)
    >>> nearness(torch.tensor([[2.9]]), means, ones, torch.tensor([1.0, 1.0, 0.0])).argmax().item()
    1
    """
    both = present * seen
    known = torch.where(both.any(), both, present) > 0
    apart = distance(z.to(means.dtype)[:, None], means[None])
    return (-apart).masked_fill(~known, -torch.inf)
