"""# FedFA: federated feature augmentation

Clients that record the same things differently (scanners, cameras, pens) differ in the *style* of
their features: mean and standard deviation of each channel. FedFA puts layers behind stages of the
network that move the style of every sample at random in training, so that a client also sees what
its data might look like elsewhere. A channel moves as far as it varies over the client's batch, and
further the more clients differ in it. (Zhou and Konukoglu, FedFA, ICLR 2023.)

## The loss

The task's own. What changes is the forward pass: with chance `p` a layer acts on a batch, and then,
for sample i and channel c with mean m and standard deviation s over the positions,

    m' = m + e1 sqrt((1 + gamma_c) S_m)
    s' = s + e2 sqrt((1 + gamma_c) S_s)
    x' = s' (x - m) / s + m'

with one draw of e1, e2 ~ N(0, 1) per sample and channel.

S_m and S_s are the variances of m and s over the batch (plus 1e-6); gamma_c = C t_c / sum(t) with
t = V / (1 + V), where V is the variance over clients, each for means and for standard deviations.
The mean of gamma over channels is 1. Gradients flow through everything but gamma. A layer that acts
also moves the client's averages of m and s: a <- alpha a + (1 - alpha) mean over the batch. In
evaluation the layers do nothing.

Layers go behind all stages that give maps [B, C, H, W] or tokens [B, T, C] (`layers="maps"`). A
stage of vectors [B, D] has no spread: named explicitly, it gets noise on its values, by the means'
formula. The stages of `unet` are the encoder's pools and the bottleneck, none of the decoder; name
such in a U-Net of your own. A network without maps or tokens (a perceptron) is refused, unless
stages are named.

## When to use it

Where sites differ in texture, contrast or colour, and one global model is wanted. Where each site
may keep layers of its own, try FedBN beside it, and both together (`fedfa+fedbn`). It needs batches
of some size: their variance is its measure.

## What crosses the wire

Beyond the model, for every layer: up the client's averages (2 C floats, individual), down the
variances V (2 C floats). That is 18 KiB a round for a network of 1152 channels, both ways together.
Clients keep their averages from round to round. V counts every participant once, whatever weights
the models have.

With `statistics="sums"`, which a secure sum can carry, a client sends its distance from the last
mean over clients, and the square of it, both in units of the last spread; that mean goes down, so
twice as much travels both ways. (Sums of the averages themselves would lose V, about 1e-4, to
rounding.) With `variance="client"` (FedFA-C) or `"random"` (FedFA-R) nothing is exchanged at all.
`noise` is added to what goes up, not to what the client keeps.

## Differences from the released code

- It takes *one* variance over clients and channels together, so that gamma is 1 everywhere and the
  federation plays no part: `server_variance="scalar"`. The published code's numbers come from that.
- Its server averages the clients' moving averages too, and every round begins from them:
  `memory="server"`. The paper's pseudo-code restarts at (0, 1) each round (`memory="reset"`), its
  text describes one average per client, which is the default.
- It divides variances by n - 1: `unbiased=True`. (It also adds 1e-6 to V, which moves the sixth
  digit and is left out here.)
- A round with one participant has no variance over clients: the last V stays. In the first round
  V is 1, so gamma is 1, as there.

On Office-Caltech10 (AlexNet, 400 rounds, one seed, last round) the released code gave 78.6 % mean
test accuracy as it is and 79.9 % with a variance for each channel, beside 76.5 % for FedAvg and
83.7 % for FedBN; the paper has 83.1 % for FedFA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from fedshift import keys
from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Data, Method, Report, Scope, State, Uploads
from fedshift.net import insert_after
from fedshift.parts import style
from fedshift.parts.ffa import FFA, beginning, deviation, from_sums, shared_variance
from fedshift.tree import Tree

if TYPE_CHECKING:
    from fedshift.net import Net


@dataclass(frozen=True)
class FedFA(Method):
    """Features of a client in styles that other clients might have.

    >>> FedFA(p=0.3, layers="1,2").variance
    'both'
    """

    name: ClassVar[str] = "fedfa"
    paper: ClassVar[str] = "Zhou and Konukoglu, FedFA: Federated Feature Augmentation, ICLR 2023"
    content: ClassVar[dict[str, str]] = {"fedfa_": "statistics"}

    p: float = hp(0.5, "chance that a layer acts on a batch (p)", low=0, high=1, off=0.0)
    momentum: float = hp(0.99, "momentum of the moving averages (alpha)", low=0, high=1)
    layers: str = hp("maps", "stages with a layer behind: maps, all, or names or numbers by commas")
    variance: str = hp(
        "both",
        "source of the jitter's variance: both, the client's alone (FedFA-C), or fixed (FedFA-R)",
        choices=("both", "client", "random"),
    )
    std: float = hp(0.5, "standard deviation of the jitter where variance is random", low=0)
    fusion: str = hp(
        "adaptive",
        "widen by relative weights of channels (gamma) or by V itself",
        choices=("adaptive", "direct"),
    )
    server_variance: str = hp(
        "channel",
        "V of every channel, or one number over clients and channels (as released)",
        choices=("channel", "scalar"),
    )
    unbiased: bool = hp(False, "divide variances by n - 1 (as released) instead of n")
    memory: str = hp(
        "client",
        "the moving averages go on from the client's own, from (0, 1), or from the server's mean",
        choices=("client", "reset", "server"),
    )
    statistics: str = hp(
        "individual",
        "what goes up: each client's averages, or terms of which only sums are needed",
        choices=("individual", "sums"),
    )
    noise: float = hp(
        0.0, "standard deviation of the privacy noise on averages that go up (s)", low=0
    )

    # -- declarations --------------------------------------------------------------------------

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Put a layer behind every chosen stage."""
        for stage, shape in self._stages(facts).items():
            layer = FFA(
                style.channels(shape),
                style.positions(shape),
                p=self.p,
                momentum=self.momentum,
                source=self.variance,
                std=self.std,
                fusion=self.fusion,
                unbiased=self.unbiased,
                centred=self.statistics == "sums" or self.memory == "server",
            )
            insert_after(model, stage, _layer(stage), layer)
        return model

    def scope(self, name: str, module: nn.Module) -> Scope:
        """What the server measures goes down; what a trip adds to averages is the trip's."""
        if not isinstance(module, FFA):
            return Scope()
        return Scope("down" if name.endswith((".variance", ".centre")) else "work")

    def init_client(self, params: Tree, facts: Facts) -> State:
        """A client's moving averages: means 0, standard deviations 1."""
        if self.memory != "client":
            return State()
        like = next(iter(params.values()), torch.empty(0))
        return State(
            {
                f"{layer}.average": beginning(like.new_empty(size))
                for layer, size in self._exchanged(facts).items()
            }
        )

    # -- client --------------------------------------------------------------------------------

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """The moving averages after the trip: average = decay * before + what the trip added."""
        keep: Tree = {}
        alone: Tree = {}
        summed: Tree = {}
        for layer in self._exchanged(ctx.facts):
            added, decay = net.tensors[f"{layer}.average"], net.tensors[f"{layer}.decay"]
            sent = average = decay * self._before(ctx, layer, added) + added
            if self.noise:
                key = keys.fold_in(ctx.key, f"noise on {layer}")
                sent = sent + self.noise * keys.normal(key, tuple(sent.shape), sent.dtype)
            if self.statistics == "individual":
                alone[f"{layer}.average"] = sent
            else:
                last = ctx.initial[f"{layer}.centre"], ctx.initial[f"{layer}.variance"]
                summed[f"{layer}.apart"], summed[f"{layer}.square"] = deviation(sent, *last)
            keep[f"{layer}.average"] = average
        return Report(sum=summed, individual=alone, keep=keep if self.memory == "client" else {})

    def _before(self, ctx: Ctx, layer: str, like: Tensor) -> Tensor:
        """The moving averages as the trip began."""
        if self.memory == "client":
            return ctx.kept[f"{layer}.average"]
        return ctx.initial[f"{layer}.centre"] if self.memory == "server" else beginning(like)

    # -- server --------------------------------------------------------------------------------

    def after(
        self, new: Tree, uploads: Uploads, server: State, net: Net, key: int
    ) -> tuple[Tree, State]:
        """V of the round's participants, and the mean of their averages where clients need it."""
        if not uploads.model:  # a stage without training: the averages have not moved
            return new, server
        found, clients = dict(new), len(uploads.clients)
        sent = [n for n in uploads.extras if n.startswith("fedfa_")]
        for layer in dict.fromkeys(n.rpartition(".")[0] for n in sent):
            v, centre = f"{layer}.variance", f"{layer}.centre"
            if self.statistics == "individual":
                rows = uploads.extras[f"{layer}.average"]
                mean, var = rows.mean(dim=0), style.variance(rows, 0)
            else:
                sums = uploads.combined[f"{layer}.apart"], uploads.combined[f"{layer}.square"]
                mean, var = from_sums(*sums, clients, new[centre], new[v])
            if clients > 1:  # one client alone has no variance: the last V stays
                scalar = self.server_variance == "scalar"
                found[v] = shared_variance(mean, var, clients, scalar, self.unbiased)
            if centre in new:
                found[centre] = mean
        return found, server

    # -- which layers there are ----------------------------------------------------------------

    def _stages(self, facts: Facts) -> dict[str, tuple[int, ...]]:
        """The stages with a layer behind, and the shapes of their outputs."""
        return style.chosen(facts.stage_shapes, self.layers) if self.p else {}

    def _exchanged(self, facts: Facts) -> dict[str, tuple[int, int]]:
        """The layers whose averages go up: how many statistics of how many channels."""
        stages = self._stages(facts).items() if self.variance == "both" else ()
        return {
            _layer(stage): (1 + (style.positions(shape) > 1), style.channels(shape))
            for stage, shape in stages
        }


def _layer(stage: str) -> str:
    """The name of the layer behind a stage; it has no dots, as names of modules must."""
    return "fedfa_" + stage.replace(".", "_")
