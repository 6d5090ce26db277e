"""# FedFA: federated feature augmentation

Clients that record the same things differently (scanners, cameras, pens) differ in the *style* of
their features: mean and standard deviation of each channel. FedFA puts a layer behind the stages of
the network that moves the style of every sample at random while it trains, so that a client also
sees what its data might look like elsewhere. How far a channel may move is the client's own
variance over the batch, widened where the clients differ most from each other in that channel.
The paper is Zhou and Konukoglu, FedFA: Federated Feature Augmentation, ICLR 2023.

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

Layers go behind all stages that give maps [B, C, H, W] or tokens [B, T, C] (`layers="maps"`). An
output with one position only, as vectors [B, D] have, has no spread: named explicitly, such a stage
gets noise on its values, by the means' formula, and exchanges nothing of standard deviations. In a
U-Net name the stages that hold the encoder's pools and the bottleneck, none of the decoder. A
network without maps or tokens (a perceptron) is refused, unless stages are named.

## When to use it

Where sites differ in texture, contrast or colour, and one global model is wanted. It helps most on
sites with few data. Where each site may keep layers of its own, FedBN is often stronger, and the
two go together (`fedfa+fedbn`). It needs batches of some size: their variance is its measure.

## What crosses the wire

Beyond the model, for every layer: up the client's two averages (2 C floats, individual), down the
two variances V (2 C floats). That is 18 KiB a round for a network of 1152 channels. Clients keep
their averages from round to round. With `statistics="sums"`, which a secure sum can carry, a client
sends its distance from the last mean over clients, and the square of it, both in units of the last
spread; that mean goes down, so twice as much travels both ways. (Sums of the averages themselves
would lose V, about 1e-4, to rounding.) With `variance="client"` (FedFA-C) or `"random"` (FedFA-R)
nothing is exchanged at all.

## Differences from the released code

- It takes *one* variance over clients and channels together, so that gamma is 1 everywhere and the
  federation plays no part: `server_variance="scalar"`. The published code's numbers come from that.
- Its server averages the clients' moving averages too, and every round begins from them:
  `memory="server"`. The paper's pseudo-code restarts at (0, 1) each round (`memory="reset"`), its
  text describes one average per client, which is the default.
- It divides variances by n - 1: `unbiased=True`. (It also adds 1e-6 to V, which moves the sixth
  digit and is left out here.)
- A round with one participant has no variance over clients: the last V stays. In the first round
  V is 1, so gamma is 1.

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
from fedshift.parts.ffa import FFA, deviation, from_sums, shared_variance
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
        for stage, layer in self._layers(facts).items():
            insert_after(model, stage, _module(stage), layer)
        return model

    def scope(self, name: str, module: nn.Module) -> Scope:
        """What the server measures goes down; what a trip adds to averages is the trip's."""
        if not isinstance(module, FFA):
            return Scope()
        shared = name.rpartition(".")[2].startswith(("variance_", "centre_"))
        return Scope("down" if shared else "work")

    def init_client(self, params: Tree, facts: Facts) -> State:
        """A client's moving averages: means 0, standard deviations 1."""
        if self.memory != "client":
            return State()
        like = next(iter(params.values()), torch.empty(0))
        return State(
            {
                f"{module}.{statistic}": like.new_full((size,), _start(statistic))
                for module, statistic, size in self._exchanged(facts)
            }
        )

    # -- client --------------------------------------------------------------------------------

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """The moving averages after the trip."""
        keep: Tree = {}
        alone: Tree = {}
        summed: Tree = {}
        for module, statistic, _ in self._exchanged(ctx.facts):
            name, now = f"{module}.{statistic}", net.tensors
            keep[name] = now[f"{module}.decay"] * self._before(ctx, name, now[name]) + now[name]
            sent = keep[name] + self.noise * self._noise(ctx, name, now[name])
            if self.statistics == "individual":
                alone[name] = sent
            else:
                known = ctx.initial[_named(name, "centre")], ctx.initial[_named(name, "variance")]
                summed[name], summed[f"{name}_square"] = deviation(sent, *known)
        return Report(sum=summed, individual=alone, keep=keep if self.memory == "client" else {})

    def _before(self, ctx: Ctx, name: str, like: Tensor) -> Tensor:
        """The moving average as the trip began."""
        if self.memory == "client":
            return ctx.kept[name]
        if self.memory == "server":
            return ctx.initial[_named(name, "centre")]
        return torch.full_like(like, _start(name.rpartition(".")[2]))

    def _noise(self, ctx: Ctx, name: str, like: Tensor) -> Tensor:
        if self.noise == 0:
            return torch.zeros_like(like)
        return keys.normal(keys.fold_in(ctx.key, f"noise on {name}"), tuple(like.shape), like.dtype)

    # -- server --------------------------------------------------------------------------------

    def after(
        self, new: Tree, uploads: Uploads, server: State, net: Net, key: int
    ) -> tuple[Tree, State]:
        """V of the round's participants, and the mean of their averages where clients need it."""
        if not uploads.model:  # a stage without training: the averages have not moved
            return new, server
        found = dict(new)
        clients = len(uploads.clients)
        averages = [n for n in uploads.extras if n.endswith((".mean", ".std"))]
        for name in averages:
            variance, centre = _named(name, "variance"), _named(name, "centre")
            if self.statistics == "individual":
                rows = uploads.extras[name]
                mean, var = rows.mean(dim=0), rows.var(dim=0, correction=0)
            else:
                sums = uploads.combined[name], uploads.combined[f"{name}_square"]
                mean, var = from_sums(*sums, clients, new[centre], new[variance])
            if clients > 1:
                scalar = self.server_variance == "scalar"
                found[variance] = shared_variance(mean, var, clients, scalar, self.unbiased)
            if centre in new:
                found[centre] = mean
        return found, server

    # -- which layers there are ----------------------------------------------------------------

    def _layers(self, facts: Facts) -> dict[str, FFA]:
        """The layer behind each chosen stage (none where no layer ever acts)."""
        stages = style.chosen(facts.stage_shapes, self.layers) if self.p else {}
        return {
            stage: FFA(
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
            for stage, shape in stages.items()
        }

    def _exchanged(self, facts: Facts) -> list[tuple[str, str, int]]:
        """Module, statistic and number of channels of every average that goes up."""
        if self.variance != "both":
            return []
        return [
            (_module(stage), statistic, style.channels(facts.stage_shapes[stage]))
            for stage, layer in self._layers(facts).items()
            for statistic in layer.statistics
        ]


def _module(stage: str) -> str:
    """The name of the layer behind a stage; it has no dots, as names of modules must."""
    return "fedfa_" + stage.replace(".", "_")


def _named(name: str, what: str) -> str:
    """The buffer "layer.variance_mean" of the average "layer.mean".

    >>> _named("fedfa_conv1.mean", "variance")
    'fedfa_conv1.variance_mean'
    """
    module, _, statistic = name.rpartition(".")
    return f"{module}.{what}_{statistic}"


def _start(statistic: str) -> float:
    return 1.0 if statistic == "std" else 0.0
