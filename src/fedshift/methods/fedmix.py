"""# FedMix: Mixup with averages of everybody's samples

Clients mix their samples with those of others, without seeing one: before training each sends means
of a few of its samples and of their labels, and everybody gets the pool of these. A mean is no
sample, so the mixture is approximated to first order around the client's own. The paper is Yoon,
Shin, Hwang and Yang, FedMix: Approximation of Mixup under Mean Augmented Federated Learning, ICLR
2021.

## The loss

With a batch (x, y), entries (xm, ym) of the pool drawn for it, and l = `lam`, at x' = (1 - l) x

    (1 - l) CE(x', y) + l CE(x', ym) + l <grad CE(x', y), xm>

with the gradient with respect to x' of each sample, averaged over the batch. It agrees with
Mixup's loss at (1 - l) x + l xm up to terms in l^2. Gradients flow through the third term, too.
`form=naive` is that loss itself, at the means (the paper's NaiveMix).

## When to use it

When labels differ between clients and it may be shown what the mean of `mean_of` samples looks
like. The published l are 0.01 to 0.2. A step costs a second derivative, and with running statistics
a pass without gradients that moves them. `lam=0` is off. Classification only.

Other methods' terms are of the batch as it was, with its own labels; they cost a pass of their own.

## What crosses the wire

Once, before training: up every client's means with their mean labels (`size` over the number of
clients), down the pool of `size` of them. Clients keep it.

## Differences from other codes

FedBR's differentiates the mean over the batch with its factor 1 - l, and divides by the batch size
once more: its third term is B / (1 - l) times too small (`form=fedbr`). It also makes new means at
every local step, which only a simulation can. Here samples of a mean are drawn with replacement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift import keys
from fedshift.errors import CannotCombine
from fedshift.hparam import hp
from fedshift.method import Ctx, Data, Method, Report, Stage, State, Uploads
from fedshift.methods.mixup import soft
from fedshift.parts import pseudo
from fedshift.protocol import Protocol
from fedshift.tree import Tree

if TYPE_CHECKING:
    from fedshift.net import Net, Output

COLLECT, SEND = "fedmix-collect", "fedmix-send"
FORMS = ("taylor", "fedbr", "naive")


@dataclass(frozen=True)
class FedMix(Method):
    """Mixtures with averaged samples, to first order.

    >>> [stage.name for stage in FedMix().stages(Protocol(rounds=5))]
    ['fedmix-collect', 'fedmix-send', 'train']
    """

    name: ClassVar[str] = "fedmix"
    paper: ClassVar[str] = (
        "Yoon et al., FedMix: Approximation of Mixup under Mean Augmented Federated Learning, "
        "ICLR 2021"
    )
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    content: ClassVar[dict[str, str]] = {"pool": "averaged data", "means": "averaged data"}

    lam: float = hp(0.1, "share of the pool in a mixture (lambda)", low=0, high=1, off=0.0)
    form: str = hp("taylor", "how the mixture's loss is approximated", choices=FORMS)
    mean_of: int = hp(5, "samples in a mean (M)", low=1)
    size: int = hp(256, "means in the pool, of all clients together", low=1, quick=6)

    def stages(self, protocol: Protocol) -> tuple[Stage, ...]:
        """Collect the means and send the pool, once."""
        train = Stage("train", protocol.rounds)
        once = (Stage(n, 1, "collect", everyone=True) for n in (COLLECT, SEND))
        return (*once, train) if self.lam else (train,)

    # -- the pool ------------------------------------------------------------------------------

    def broadcast(self, server: State, client: str, round: int) -> State:
        """The pool, until it is with the clients."""
        return server

    def after(
        self, new: Tree, uploads: Uploads, server: State, net: Net, key: int
    ) -> tuple[Tree, State]:
        """Make the pool of what came; forget it once it is sent."""
        if uploads.stage != COLLECT:
            return new, State()
        means = next(iter(uploads.extras.values()))
        draw = keys.as_tensor(key, means.device)  # one for both, so that pairs stay together
        pool = {
            f"pool/{part}": pseudo.collected(uploads, f"means/{part}", draw, self.size, "even")
            for part in ("x", "y")
        }
        return new, State(pool)

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """Means of own data; then the pool, to keep."""
        if ctx.stage == SEND:
            return Report(keep=dict(ctx.received))
        if ctx.stage != COLLECT:
            return Report()
        facts, key = ctx.facts, keys.fold_in(ctx.key, "means")
        count = pseudo.quota(self.size, len(facts.clients), "even")
        x, y = pseudo.labelled_means_of(
            data, ctx.samples, facts.shape, facts.classes, key, count, self.mean_of, ctx.lr.dtype
        )
        return Report(individual={"means/x": x, "means/y": y})

    # -- training ------------------------------------------------------------------------------

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """The loss of mixtures with entries of the pool."""
        if not self.lam or ctx.phase != "model":
            return {}
        if "pool/x" not in ctx.kept:
            raise CannotCombine(
                f"fedmix has no pool yet in the stage '{ctx.stage}': name it before the method "
                "that this stage belongs to"
            )
        pool_x, pool_y = ctx.kept["pool/x"], ctx.kept["pool/y"]
        at = keys.integers(keys.fold_in(ctx.key, "pool"), len(pool_x), (len(out.x),))
        mean_x, mean_y = pool_x.index_select(0, at), pool_y.index_select(0, at)
        labels = soft(y, ctx.facts.classes, mean_y)
        return {"task": mixture(net, out.x, labels, mean_x, mean_y, self.lam, self.form)}


def mixture(
    net: Net, x: Tensor, y: Tensor, mean_x: Tensor, mean_y: Tensor, lam: float, form: str
) -> Tensor:
    """The loss of a batch with soft labels, each sample with an entry of the pool, row by row."""
    rest = 1.0 - lam
    if form == "naive":
        return F.cross_entropy(net(rest * x + lam * mean_x), rest * y + lam * mean_y)
    logits, slope = logits_and_slope(net, rest * x, lambda logits: F.cross_entropy(logits, y))
    # slope is of the mean over the batch already; FedBR's takes the factor in, and divides again
    scale = rest / len(x) if form == "fedbr" else 1.0
    step = scale * (slope * mean_x).sum()
    own, other = F.cross_entropy(logits, y), F.cross_entropy(logits, mean_y)
    return rest * own + lam * (other + step)


def logits_and_slope(
    net: Net, x: Tensor, loss: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """The logits of inputs and the gradient of their loss by the inputs, to differentiate again.

    Running statistics move as in any pass.
    """

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        logits = net.aside()(x)  # nothing may move inside of a derivative
        return loss(logits), logits

    slope, logits = torch.func.grad(run, has_aux=True)(x)
    if net.buffers:
        with torch.no_grad():
            net.features(x)
    return logits, slope
