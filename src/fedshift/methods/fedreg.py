"""# FedReg: steps that do not make a client forget

A client that trains on its own data forgets what the received model knew of everybody's. What it
knew is written in images that it finds hard to tell from those of the client: pseudo-data, made by
going up the loss, with the labels that the received model gives them. After every step the part of
the client's displacement that raises the loss on pseudo-data is taken out. The paper is Xu, Hong,
Huang and Jiang, Acceleration of Federated Learning with Alleviated Forgetting in Local Training,
ICLR 2022.

## The step

Once a round, by the received model w_t in evaluation mode, each sample x becomes x_s in `ascents`
steps x <- x + eta_s sign(grad_x CE(w_t; x, y)), with the softmax s of w_t at x_s for a label, and
x_p in as many smaller steps eta_p, with the label y. Then a local step is

    m = gamma w + (1 - gamma) w_t,           w <- w - eta grad L(m)
    q = beta w + (1 - beta) w_t,             d = w - w_t
    g2 = grad CE(q; x_s, s),                 a = max(0, <d, g2> / |g2|^2)
    g3 = grad CE(q; x_p, y),                 b = max(0, <d - a g2, g3> / |g3|^2)
    w <- w - a g2 - b g3

over the trained, shared parameters. After the second projection the first is no longer exact.
Pseudo-data follow in the order of the data, whichever samples the step itself is on. They are in
units of the network's inputs and are not clipped to what images can be.

In logs, the term `pseudo` is CE(q; x_s, s).

## When to use it

When clients lack classes and take many steps. A step takes three gradients, a round twice `ascents`
passes over the data more, and memory for two more copies of the data of every client in training.
It is made for plain SGD: momentum carries a projection on into later steps, and weight decay counts
in both halves of a step. Corrections such as SCAFFOLD's would act on both halves, too.

## What crosses the wire

Nothing beside the model.

## Differences from the released code

Its means weigh clients alike, as `weights="uniform"` of the protocol does. On a CPU it changes
images in place, so that x, x_s and x_p are the same tensor; on a GPU, and here, they are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift.hparam import hp
from fedshift.method import Ctx, Data, Method, Objective, Phase
from fedshift.tree import Tree, map_tree, pick, square_norm

if TYPE_CHECKING:
    from fedshift.net import Net, Output

PROJECTION = "fedreg"
_LEAST = 1e-30  # what squared norms and rates of 0 are taken for


@dataclass(frozen=True)
class FedReg(Method):
    """Local steps without the part that forgets.

    >>> [phase.name for phase in FedReg().phases()], FedReg(gamma=0.4).beta
    (['model', 'fedreg'], 0.5)
    """

    name: ClassVar[str] = "fedreg"
    paper: ClassVar[str] = (
        "Xu et al., Acceleration of Federated Learning with Alleviated Forgetting in Local "
        "Training, ICLR 2022"
    )

    gamma: float = hp(
        0.5, "share of the own model where the gradient is taken (gamma)", low=0, high=1, off=1.0
    )
    beta: float = hp(
        0.5, "share of the own model where pseudo-data are looked at (beta)", low=0, high=1
    )
    eta_s: float = hp(0.1, "step of the ascent to pseudo-data (eta_s)", low=0)
    eta_p: float = hp(1e-3, "step of the ascent to perturbed data (eta_p)", low=0)
    ascents: int = hp(10, "steps of both ascents (p)", low=1, quick=2)
    project: bool = hp(True, "take out of each step what forgets", off=False)

    def phases(self) -> tuple[Phase, ...]:
        """The step, and what is taken back of it."""
        back = Phase(PROJECTION, terms=("pseudo",), optimizer="sgd")
        return (Phase(), back) if self.project else (Phase(),)

    def start(self, ctx: Ctx, net: Net, data: Data) -> Tree:
        """Pseudo-data and perturbed data, with their labels, in the order of the data."""

        def add(acc: Tree, x: Tensor, y: Tensor, mask: Tensor) -> Tree:
            hard = ascended(net, x, y, self.eta_s, self.ascents)
            near = ascended(net, x, y, self.eta_p, self.ascents)
            made = {"x_s": hard, "s": net(hard).softmax(dim=1), "x_p": near, "y": y}
            return {n: torch.cat([acc[n], t]) if n in acc else t for n, t in made.items()}

        return data.fold(add, {}) if self.project else {}

    def gradient(self, loss: Objective, params: Tree, ctx: Ctx) -> Tree:
        """The gradient between the received model and the own."""
        if ctx.phase != "model" or self.gamma == 1:
            return loss.grad(params)
        return loss.grad(between(params, ctx.initial, self.gamma))

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """A term whose gradient, times the learning rate, is what the projections take out."""
        if ctx.phase != PROJECTION:
            return {}
        still = net.aside({n: t.detach() for n, t in net.tensors.items()})
        now = pick(still.tensors, ctx.shared)
        q = between(now, ctx.initial, self.beta)
        rows = (ctx.step * len(out.x) + torch.arange(len(out.x), device=out.x.device)) % ctx.samples
        x_s, s, x_p, label = (ctx.fixed[n].index_select(0, rows) for n in ("x_s", "s", "x_p", "y"))

        def at(params: Tree, x: Tensor, target: Tensor) -> Tensor:
            return F.cross_entropy(still.aside(params)(x), target)

        g2, value = torch.func.grad_and_value(at)(q, x_s, s)
        g3 = torch.func.grad(at)(q, x_p, label)
        out_of = forgetting({n: w - ctx.initial[n] for n, w in now.items()}, g2, g3)
        scale = ctx.lr.clamp_min(_LEAST)
        # nothing but the gradient: the factor of what is taken out is 0
        taken = [(t / scale * (net.tensors[n] - now[n])).sum() for n, t in out_of.items()]
        return {"pseudo": value.detach() + torch.stack(taken).sum()} if taken else {}


def between(own: Tree, received: Tree, share: float) -> Tree:
    """share * own + (1 - share) * received.

    >>> between({"w": torch.tensor(3.0)}, {"w": torch.tensor(1.0)}, 0.5)
    {'w': tensor(2.)}
    """
    return {n: share * w + (1.0 - share) * received[n] for n, w in own.items()}


def ascended(net: Net, x: Tensor, y: Tensor, rate: float, steps: int) -> Tensor:
    """Inputs after steps of a rate along the sign of their gradients, up the loss."""
    uphill = torch.func.grad(lambda v: F.cross_entropy(net(v), y, reduction="sum"))
    for _ in range(steps):
        x = x + rate * uphill(x).sign()
    return x


def forgetting(d: Tree, g2: Tree, g3: Tree) -> Tree:
    """What of a displacement goes up g2, and what of the rest goes up g3.

    >>> d, g2, g3 = ({"w": torch.tensor(w)} for w in ((3.0, 1.0), (1.0, 1.0), (1.0, 0.0)))
    >>> forgetting(d, g2, g3)
    {'w': tensor([3., 2.])}
    """
    first = _part(d, g2)
    second = _part(map_tree(torch.sub, d, first), g3)
    return map_tree(lambda a, b: (a + b).detach(), first, second)


def _part(d: Tree, g: Tree) -> Tree:
    """The component of d along g, if it points the same way."""
    along = torch.stack([(t * g[n]).sum() for n, t in d.items()]).sum()
    share = along.clamp_min(0.0) / square_norm(g).clamp_min(_LEAST)
    return {n: share * t for n, t in g.items()}
