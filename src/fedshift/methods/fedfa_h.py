"""# FedFA-h: federated feature alignment

Clients' features are pulled together without showing them to anybody: each client describes every
channel of its last stage by a histogram of L bins, the server takes the mean of the histograms, and
in training each batch's histogram is drawn towards it. The bins are soft, so that gradients flow.
It is the alignment half of FedFA+ (Zhou et al., TPAMI 2024); the other half is FedFA.

## The loss

    task + lambda * mean over channels of 1/2 (KL(pi_b, pi) + KL(pi, pi_b))

pi_b is the histogram of the batch's features, pi the mean over clients. A value z of a channel is
scaled to u = (z - low) / (high - low) with the limits of that channel on this client, and put into
bins by softmax((w u + b) / tau), with w = 1 … L and b the negated running sums of the cut points
0, 1/(L-2), …, 1, after a first 0. Every position of a map counts as a sample. The term begins in
the second round, and on a client that joins later in its second round: before, it has no limits.

## When to use it

Beside FedFA (as `fedfa-plus`): FedFA widens what a client sees, this keeps the wider features of
all clients alike. Alone it brings little: in the paper's table 0.2 to 1.3 points over FedAvg.
Since limits are a client's own, it aligns the shapes of distributions, not their places.

## What crosses the wire

Down the mean histogram and up the client's, C x L floats each (16 KiB a round together for 256
channels and 8 bins); no histogram goes down in the first round. The server needs the plain mean
over clients only, which a secure sum can carry. Clients keep the limits of their channels. Limits
and histogram come from one pass over a client's data after training, in evaluation mode; sites of
more than 32 batches, whose maps are not held, take a second one.

## Differences from the released code

The alignment half was never released (the public code holds an unused hard binning). Three things
that the paper leaves open are decided here: the term is the *mean* over channels, as a sum over 256
channels would make lambda = 0.1 very strong (`reduction="sum"`); the limits of a batch are those of
the client's last full pass, and values beyond them are not clamped (`value_range="batch"` takes the
batch's own); and with two bins the single cut point is 1/2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Data, Method, Report, State, Uploads
from fedshift.parts import style
from fedshift.parts.histogram import describe, histogram, limits, symmetric_kl
from fedshift.tree import Tree

if TYPE_CHECKING:
    from fedshift.net import Net, Output


@dataclass(frozen=True)
class FedFAH(Method):
    """Histograms of features, aligned with their mean over clients.

    >>> FedFAH(bins=24).align
    0.1
    """

    name: ClassVar[str] = "fedfa-h"
    paper: ClassVar[str] = (
        "Zhou et al., Federated Feature Augmentation and Alignment, TPAMI 2024 (the alignment)"
    )
    taps: ClassVar[tuple[str, ...]] = ("*",)
    content: ClassVar[dict[str, str]] = {"histogram": "statistics"}

    align: float = hp(0.1, "weight of the alignment term (lambda)", low=0, off=0.0)
    stage: str = hp("last", "stage to align: its name or number, or the last one that gives maps")
    bins: int = hp(8, "bins of a histogram (L)", low=2)
    # the slope of the gradient grows with 1 / tau^2, and rounding with it
    tau: float = hp(0.01, "temperature of the soft bins (tau)", low=1e-4, quick=0.1)
    reduction: str = hp("mean", "how channels are put together", choices=("mean", "sum"))
    value_range: str = hp(
        "client",
        "limits of a channel: of the client's last full pass, or of the batch",
        choices=("client", "batch"),
    )

    # -- server --------------------------------------------------------------------------------

    def broadcast(self, server: State, client: str, round: int) -> State:
        """The mean histogram, once there is one."""
        return server

    def combine_extra(self, name: str, stacked: Tensor, weights: Tensor) -> Tensor | None:
        """Histograms take the plain mean, whatever weights the models have."""
        return stacked.mean(dim=0) if name == "histogram" else None

    def after(
        self, new: Tree, uploads: Uploads, server: State, net: Net, key: int
    ) -> tuple[Tree, State]:
        """The mean histogram of a round of training."""
        if not uploads.model or "histogram" not in uploads.combined:
            return new, server
        return new, State({"histogram": uploads.combined["histogram"]})

    # -- client --------------------------------------------------------------------------------

    def init_client(self, params: Tree, facts: Facts) -> State:
        """Limits that no channel has: they tell that there was no pass yet."""
        if self.align == 0:
            return State()
        like = next(iter(params.values()), torch.empty(0))
        size = style.channels(facts.stage_shapes[self._stage(facts)])
        return State({"low": like.new_zeros(size), "high": like.new_zeros(size)})

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """How far the batch's histograms are from the mean ones."""
        if self.align == 0 or "histogram" not in ctx.received:
            return {}
        z = style.as_maps(out.stage(self._stage(ctx.facts)))
        bounds = ctx.kept["low"], ctx.kept["high"]
        known = (bounds[1] > bounds[0]).any().to(z.dtype)  # 0 before the client's first pass
        if self.value_range == "batch":
            bounds, known = limits(z), torch.ones_like(known)
        apart = symmetric_kl(histogram(z, bounds, self.bins, self.tau), ctx.received["histogram"])
        total = apart.mean() if self.reduction == "mean" else apart.sum()
        return {"histogram": self.align * known * total}

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """The client's mean histogram, and the limits of its channels for the next rounds."""
        if self.align == 0:
            return Report()
        stage = self._stage(ctx.facts)

        def maps(x: Tensor) -> Tensor:
            return style.as_maps(net.output(x, (stage,)).stage(stage))

        zeros = ctx.lr.new_zeros(style.channels(ctx.facts.stage_shapes[stage]))
        batch = ctx.protocol.batch
        (low, high), whole = describe(data, maps, zeros, batch, self.bins, self.tau)
        mean = {"histogram": whole / ctx.samples}
        return Report(mean=mean, keep={"low": low, "high": high})

    def _stage(self, facts: Facts) -> str:
        """The stage whose output is aligned."""
        shapes = facts.stage_shapes
        if self.stage != "last":
            return next(reversed(style.chosen(shapes, self.stage)))
        maps = [s for s, shape in shapes.items() if style.positions(shape) > 1]
        return (maps or list(shapes))[-1]
