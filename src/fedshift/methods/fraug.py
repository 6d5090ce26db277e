"""# FRAug: federated representation augmentation

Every client trains its head also on embeddings that were made for its own domain. A small generator
G, shared by all, makes embeddings of a wanted class from noise. A private network m (the paper's
RTNet) turns them into residuals in the client's own style, which are added to real embeddings and
to the class means that each client keeps. Batch norm stays on its client, as in FedBN. The paper is
Chen et al., FRAug: Tackling Federated Learning with Non-IID Features via Representation
Augmentation, ICCV 2023.

## The loss

In round r of R, with ramp lambda = exp(gamma (r - R)) and w = min(1/2, lambda), a local step makes
three updates, each seeing the one before. u are a batch's embeddings with labels y, c the client's
class means, y' labels that cycle through the classes, z fresh noise, h the head:

    u1 = c[y'] + lambda m(G(z, y'), y')        u2 = u + lambda m(G(z, y), y)

- model: (1 - w) CE(h(u), y) + w/2 [CE(h(u1), y') + CE(h(u2), y)]. The second part reaches h alone.
- G: CE(h(v), y') - alpha D(v, u) with v = G(z, y'): of the right class, unlike what the client has.
- m: half the sum over u1 and u2, at lambda = 1, of -entropy(h(u_k)) + beta D(u_k, what the residual
  was added to): hard to tell, and near.

Only the network that learns is in train mode. Class means start at zero; before u1 is made, those
of the batch's classes move: c <- 0.7 c + 0.3 (mean over the batch). D is a maximum mean discrepancy
with Gaussian kernels, a comparison of means and covariances, or the mean squared difference of rows
(`l2`; there G keeps away from c[y']).

## When to use it

Few samples per client, the same labels everywhere, inputs that differ; networks whose features end
in a ReLU, since what G makes is not below zero. Scores are of each client's own model. A step costs
up to two further passes through the features, without gradients.

The authors train 200 rounds of 5 to 20 steps on 1 to 10 % of the data, with SGD at 0.01 and with
momentum 0.5 that is kept between rounds (`reset_optimizer=False`). The defaults here are for
Office-Home. Those for the others, where they differ:

| | PACS | Digits |
|---|---|---|
| `alpha`, `beta` | 10, 1 | 1, 1 |
| distances | `rtnet_distance=l2` | `generator_distance=l2` |
| `lr_generator`, `lr_rtnet` | 0.05, 0.05 | 0.05, 0.05 |
| batch norm of G | `local_generator_norm=False` | `local_generator_norm=False` |
| ramp | | `ramp_rate=0.002`, `ramp_residual=never` |

The paper's ablations are `augment` and `stream` (Table 5, where "EMA" is the stream from class
means), `input_noise` (Table 6), and `augment=uniform`, `laplace` or `normal` with `spread`
(Table 7).

## What crosses the wire

Both ways: the model and G, each without its batch norms. G is 399,360 numbers for 512 features, 10
classes and noise of width 256. Never: m, the class means, batch norms.

## Differences from the released code

The paper leaves much open. Where it and the code disagree, this says which of them is the default.

- Noise is normal as in the paper; the code's is uniform on [0, 1) (`noise=uniform`).
- lambda and the constant rate of the class means are the code's. The paper cites another ramp
  (`ramp=gaussian`) and ramps that rate too (`means_ramp=True`). gamma is 2 / R: the code's 0.01 at
  200 rounds, and the same course of lambda over fewer. With 0.01 and 20 rounds, w would be one half
  from the start.
- The two losses are mixed by w as in the code; the paper adds them (`mixing=sum`).
- Means of classes that a batch lacks stay, as in the code; read literally, the paper's Eq. 4
  shrinks them (`means_rule=shrinking`).
- m learns at the full residual as in the code; the paper's formula scales it by lambda
  (`ramp_residual=always`).
- D is one number for the whole batch as in the code; the paper's Eq. 6 sums over classes.
- The code shares batch norms whose name has no "bn" in it: those of ResNet's shortcuts
  (`local_norm=no-shortcuts`).
- alpha D is unbounded for `l2`. Here D stops pushing at `cap`, which the code does not have.
- The code averages G over the clients' different first draws; here all begin with one. It weights
  clients by samples (`weights=samples` of the protocol). It goes on through the data from round to
  round; here each round draws a new order.
- For Office-Home and PACS its evaluation scores the split that chose the round, randomly augmented.
  Here scores are of the test split.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift import keys, task
from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Method, Phase, Scope
from fedshift.parts.class_means import RULES, ClassMeans
from fedshift.parts.confusion import CONFUSIONS
from fedshift.parts.generators import Generator, ResidualNet
from fedshift.parts.labels import cyclic
from fedshift.parts.mmd import DISTANCES
from fedshift.parts.noise import NOISES, perturbed
from fedshift.parts.ramps import RAMPS

if TYPE_CHECKING:
    from fedshift.net import Net, Output

# attached modules; each network is trained by a phase of its name
GENERATOR, RTNET, MEANS = "fraug_generator", "fraug_rtnet", "fraug_means"
_NETWORKS = {"learned": (GENERATOR, RTNET), "generator": (GENERATOR,), "rtnet": (RTNET,)}
_NORMS = nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True)
class FRAug(Method):
    """Federated representation augmentation.

    >>> [phase.name for phase in FRAug().phases()]
    ['model', 'fraug_generator', 'fraug_rtnet']
    """

    name: ClassVar[str] = "fraug"
    paper: ClassVar[str] = (
        "Chen et al., FRAug: Tackling Federated Learning with Non-IID Features via Representation "
        "Augmentation, ICCV 2023"
    )
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    view: ClassVar[str] = "personal"

    augment: str = hp(
        "learned",
        "what makes embeddings: both networks, one of them, noise on the batch's, or nothing",
        choices=(*_NETWORKS, *NOISES, "none"),
        off="none",
    )
    stream: str = hp(
        "both",
        "embeddings made from the batch's, from class means, or both",
        choices=("both", "batch", "means"),
    )
    alpha: float = hp(
        1.25, "weight of the generator's distance from real embeddings (alpha)", low=0
    )
    beta: float = hp(1.25, "weight of RTNet's distance from real embeddings (beta)", low=0)
    generator_distance: str = hp(
        "gaussian", "distance that the generator keeps (D_G)", choices=tuple(DISTANCES)
    )
    rtnet_distance: str = hp(
        "gaussian", "distance that RTNet holds small (D_R)", choices=tuple(DISTANCES)
    )
    cap: float = hp(1000.0, "distance from which the generator is not pushed on", low=0)
    confusion: str = hp(
        "entropy", "how RTNet makes embeddings hard to tell", choices=tuple(CONFUSIONS)
    )
    lr_generator: float = hp(0.02, "learning rate of the generator", low=0)
    lr_rtnet: float = hp(0.05, "learning rate of RTNet", low=0)
    ramp: str = hp("exponential", "growth of lambda over rounds", choices=tuple(RAMPS))
    ramp_rate: float = hp(
        0.0, "rate of the exponential and hyperbolic ramps (gamma; 0: 2 / rounds)", low=0
    )
    ramp_residual: str = hp(
        "model",
        "phases in which lambda scales residuals: the model's alone, RTNet's too, or none",
        choices=("model", "always", "never"),
    )
    mixing: str = hp(
        "weighted", "real and synthetic loss: (1-w, w), or added", choices=("weighted", "sum")
    )
    means_rate: float = hp(0.3, "rate at which class means move (l_c)", low=0, high=1)
    means_ramp: bool = hp(False, "scale that rate by lambda")
    means_rule: str = hp(
        "masked",
        "means of classes that a batch lacks stay, or shrink; warm: a first batch sets the mean",
        choices=RULES,
    )
    noise: str = hp(
        "normal", "noise of the generator; uniform is on 0 to 1", choices=("normal", "uniform")
    )
    noise_width: int = hp(0, "width of the noise and inside RTNet (0: half the features)", low=0)
    rtnet_norm: bool = hp(True, "a batch norm on RTNet's output")
    local_norm: str = hp(
        "all",
        "batch norms that stay on their client: all, those outside 'downsample' modules, or none",
        choices=("all", "no-shortcuts", "none"),
        off="none",
    )
    local_generator_norm: bool = hp(True, "the generator's batch norms stay on their client")
    spread: float = hp(0.1, "scale of the noise where augment names one", low=0)
    input_noise: float = hp(0.0, "normal noise on inputs in training (sigma)", low=0, off=0.0)

    # -- declarations --------------------------------------------------------------------------

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Attach generator, RTNet and class means."""
        width, classes, noise = facts.width, facts.classes, self._noise_width(facts.width)
        if GENERATOR in self._networks:
            model.add_module(GENERATOR, Generator(noise, classes, width))
        if RTNET in self._networks:
            model.add_module(RTNET, ResidualNet(width, classes, noise, self.rtnet_norm))
        if self._networks:
            model.add_module(MEANS, ClassMeans(classes, width, self.means_rule))
        return model

    def scope(self, name: str, module: nn.Module) -> Scope:
        """The generator is shared; RTNet, class means and batch norms are kept."""
        path = name.split(".")
        norm = isinstance(module, _NORMS)
        if path[0] == RTNET:
            return Scope("kept", RTNET)
        if path[0] == MEANS:
            return Scope("kept", "frozen")
        if path[0] == GENERATOR:
            return Scope("kept" if norm and self.local_generator_norm else "both", GENERATOR)
        shared = {"all": False, "no-shortcuts": "downsample" in path, "none": True}
        return Scope("kept" if norm and not shared[self.local_norm] else "both")

    def phases(self) -> tuple[Phase, ...]:
        """Model, generator, RTNet, in this order."""
        rates = {GENERATOR: self.lr_generator, RTNET: self.lr_rtnet}
        own = (Phase(n, groups=(n,), terms=(n,), lr=rates[n]) for n in self._networks)
        return (Phase(), *own)

    # -- client --------------------------------------------------------------------------------

    def batch(self, x: Tensor, y: Tensor, ctx: Ctx) -> tuple[Tensor, Tensor]:
        """Noise on the inputs, where asked for."""
        if self.input_noise == 0:
            return x, y
        key = keys.fold_in(ctx.key, "input")
        return x + self.input_noise * keys.normal(key, tuple(x.shape), x.dtype), y

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """The terms of the phase that runs."""
        if ctx.phase == "model" and self.augment != "none":
            return self._model_terms(out, y, ctx, net)
        if ctx.phase == GENERATOR:
            return {GENERATOR: self._generator_loss(out, ctx, net)}
        if ctx.phase == RTNET:
            return {RTNET: self._rtnet_loss(out, y, ctx, net)}
        return {}

    def _model_terms(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """Cross-entropies of real embeddings, and of synthetic ones for the head alone."""
        real = task.loss(ctx.facts.task, out.logits, y)
        made = self._made(out, y, ctx, net)
        losses = [F.cross_entropy(net.head(v.detach()), label) for v, _, label in made]
        synthetic = torch.stack(losses).mean()
        if self.mixing == "sum":
            return {"task": real, "synthetic": synthetic}
        w = self._lambda(ctx).clamp_max(0.5)
        return {"task": (1.0 - w) * real, "synthetic": w * synthetic}

    def _generator_loss(self, out: Output, ctx: Ctx, net: Net) -> Tensor:
        """Embeddings of the right class, unlike those that the client has."""
        label = _cycle(out, ctx)
        made = net.call(GENERATOR, self._noise(ctx, "means", len(label)), label)
        # l2 compares rows, so it needs real ones of the same class
        paired = self.generator_distance == "l2"
        real = net.call(MEANS).index_select(0, label) if paired else out.z.detach()
        away = DISTANCES[self.generator_distance](made.to(ctx.lr.dtype), real.to(ctx.lr.dtype))
        return F.cross_entropy(net.head(made), label) - self.alpha * away.clamp_max(self.cap)

    def _rtnet_loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> Tensor:
        """Embeddings that are hard to tell, near to what the residuals were added to."""
        losses = [
            CONFUSIONS[self.confusion](net.head(made), label)
            + self.beta * DISTANCES[self.rtnet_distance](made, base)
            for made, base, label in self._made(out, y, ctx, net)
        ]
        return torch.stack(losses).mean()

    # -- synthetic embeddings ------------------------------------------------------------------

    def _made(
        self, out: Output, y: Tensor, ctx: Ctx, net: Net
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each stream: synthetic embeddings, what they were made from, and labels."""
        hard = y.argmax(dim=1) if y.is_floating_point() else y
        if ctx.phase == "model" and self._networks:  # class means move once in a step
            rate = self.means_rate * self._lambda(ctx) if self.means_ramp else self.means_rate
            net.call(MEANS, out.z, hard, rate)
        if self._networks and self.stream != "batch":
            label = _cycle(out, ctx)
            base = net.call(MEANS).index_select(0, label)
            yield self._embedding("means", base, label, ctx, net), base, label
        if not self._networks or self.stream != "means":
            base = out.z.detach().to(ctx.lr.dtype)  # exact also where the network computes in bf16
            yield self._embedding("batch", base, hard, ctx, net), base, hard

    def _embedding(self, stream: str, base: Tensor, y: Tensor, ctx: Ctx, net: Net) -> Tensor:
        """base + lambda residual; without RTNet, base + lambda (the generator's output - base)."""
        if not self._networks:
            return perturbed(base, self.augment, self.spread, keys.fold_in(ctx.key, "perturb"))
        made = self._noise(ctx, stream, len(base))
        if GENERATOR in self._networks:
            made = net.call(GENERATOR, made, y)
        residual: Tensor = net.call(RTNET, made, y) if RTNET in self._networks else made - base
        ramped = {"model": ctx.phase == "model", "always": True, "never": False}
        return base + (self._lambda(ctx) if ramped[self.ramp_residual] else 1.0) * residual

    def _noise(self, ctx: Ctx, stream: str, rows: int) -> Tensor:
        """Fresh noise for a stream of the phase: the generator's input, or RTNet's without one."""
        key = keys.fold_in(keys.fold_in(ctx.key, ctx.phase), stream)
        width = ctx.facts.width
        shape = (rows, self._noise_width(width) if GENERATOR in self._networks else width)
        draw = keys.normal if self.noise == "normal" else keys.uniform
        return draw(key, shape, ctx.lr.dtype)

    def _lambda(self, ctx: Ctx) -> Tensor:
        """The ramp of this round; by itself it starts at exp(-2), however many rounds there are."""
        rounds = ctx.protocol.rounds
        return RAMPS[self.ramp](ctx.round.to(ctx.lr.dtype), rounds, self.ramp_rate or 2.0 / rounds)

    def _noise_width(self, width: int) -> int:
        return self.noise_width or max(1, width // 2)

    @property
    def _networks(self) -> tuple[str, ...]:
        return _NETWORKS.get(self.augment, ())


def _cycle(out: Output, ctx: Ctx) -> Tensor:
    """Labels that go on through the classes from step to step and from round to round."""
    return cyclic(ctx.round * ctx.steps + ctx.step, len(out.x), ctx.facts.classes)
