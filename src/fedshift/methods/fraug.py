"""FRAug (Chen et al., ICCV 2023): every client trains its head on embeddings made for its domain.

## The idea

1. A small generator G, shared by all clients, makes embeddings of a wanted class from noise.
2. A private network m (the paper's RTNet) turns them into residuals in the client's own domain.
3. Residuals are added to real embeddings and to the class means that each client keeps.
4. The head alone learns from the sums: `model = features + head` sees them as more data.
5. Batch norm stays on its client, as in FedBN.

## The loss

In round r of R, with ramp lambda = exp(gamma (r - R)) and w = min(1/2, lambda), a local step makes
three updates, each seeing the former. Let u be a batch's embeddings, u_c the moving class means, y'
labels that cycle through the classes, z noise.

- model: (1 - w) CE(h(u), y) + w/2 [CE(h(u_y' + lambda m(G(z, y'), y')), y') + the same at (u, y)];
  the second part reaches the head h alone.
- G: CE(h(G(z, y')), y') - alpha D(G(z, y'), u): right class, but unlike what the client has.
- m: -entropy of h at both sums (hard to tell) + beta D(sum, what the residual was added to).

D is a maximum mean discrepancy with Gaussian kernels, or a cheaper variant. Class means start at
zero and move at rate 0.3.

## When to use it

Few samples per client, the same labels everywhere, inputs that differ; networks whose features end
in a ReLU, since generated embeddings are not below zero. Scores are of each client's own model. It
costs two further passes through the features per step.

The authors train 200 rounds of 5 to 20 steps on 1 to 10 % of the data, with SGD at 0.01 and with
momentum 0.5 that is kept between rounds (`reset_optimizer=False`). The defaults here are for
Office-Home. Those for the others, where they differ:

| | PACS | Digits |
|---|---|---|
| alpha, beta | 10, 1 | 1, 1 |
| distances | `rtnet_distance=l2` | `generator_distance=l2` |
| rates of G and m | 0.05, 0.05 | 0.05, 0.05 |
| batch norm of G | `local_generator_norm=False` | `local_generator_norm=False` |
| ramp | | `ramp_rate=0.002`, `ramp_residual=False` |

## What crosses the wire

Both ways: the model without its batch norms, and G (401,408 numbers for 512 features, 10 classes
and 256 of noise). Never: m, the class means, batch norms.

## Differences from the released code

The paper leaves much open; where it and the code disagree, the default is named here.

- Noise is normal as in the paper; the code's is uniform on [0, 1) (`noise=uniform`).
- lambda and the constant rate of the class means are the code's; the paper cites another ramp
  (`ramp=gaussian`) and ramps that rate too (`means_ramp`). gamma is 2 / R: the code's 0.01 at 200
  rounds, and the same course of lambda over fewer. With 0.01 and 20 rounds, synthetic embeddings
  would weigh one half from the start.
- Real and synthetic loss are mixed by w as in the code; the paper adds them (`mixing=sum`).
- Class means of absent classes stay; read literally, the paper's Eq. 4 shrinks them
  (`means_shrink`).
- m learns at the full residual as in the code; the paper's formula ramps it (`rtnet_ramp`).
- The code shares batch norms that are not called "bn": those of ResNet's shortcuts
  (`share_downsample`).
- alpha D is unbounded for `l2`; here D stops pushing at `cap`, which the code does not have.
- The code averages G over the clients' different first draws; here all begin with one. It weights
  clients by samples: that is `weights` of the protocol. It goes on through the data from round to
  round; here each round draws a new order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift import keys, task
from fedshift.errors import BadValue
from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Method, Phase, Scope
from fedshift.parts.class_means import ClassMeans
from fedshift.parts.confusion import CONFUSIONS
from fedshift.parts.generators import Generator, ResidualNet
from fedshift.parts.mmd import DISTANCES
from fedshift.parts.noise import NOISES
from fedshift.parts.ramps import RAMPS

if TYPE_CHECKING:
    from fedshift.net import Net, Output

GENERATOR, RTNET, MEANS = "fraug_generator", "fraug_rtnet", "fraug_means"
_NORMS = nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True)
class FRAug(Method):
    """Federated representation augmentation.

    >>> [phase.name for phase in FRAug().phases()]
    ['model', 'fraug-generator', 'fraug-rtnet']
    """

    name: ClassVar[str] = "fraug"
    paper: ClassVar[str] = (
        "Chen et al., FRAug: Tackling Federated Learning with Non-IID Features via Representation "
        "Augmentation, ICCV 2023"
    )
    view: ClassVar[str] = "personal"

    alpha: float = hp(
        1.25, "weight of the generator's distance from real embeddings (alpha)", low=0
    )
    beta: float = hp(1.25, "weight of RTNet's nearness to them (beta)", low=0)
    generator_distance: str = hp(
        "gaussian", "distance that the generator keeps (D_G)", choices=tuple(DISTANCES)
    )
    rtnet_distance: str = hp(
        "gaussian", "distance that RTNet holds small (D_R)", choices=tuple(DISTANCES)
    )
    lr_generator: float = hp(0.02, "learning rate of the generator", low=0)
    lr_rtnet: float = hp(0.05, "learning rate of RTNet", low=0)
    ramp: str = hp("exponential", "growth of lambda over rounds", choices=tuple(RAMPS))
    ramp_rate: float = hp(
        0.0, "rate of the exponential and hyperbolic ramps (gamma; 0: 2 / rounds)", low=0
    )
    ramp_residual: bool = hp(True, "lambda scales the residuals too, not the loss alone")
    mixing: str = hp(
        "weighted", "real and synthetic loss: (1-w, w), or added", choices=("weighted", "sum")
    )
    local_norm: bool = hp(True, "batch norms stay on their client", off=False)
    share_downsample: bool = hp(False, "share the batch norms of modules named 'downsample'")
    local_generator_norm: bool = hp(True, "the generator's batch norms stay on their client")
    rtnet_norm: bool = hp(True, "a batch norm on RTNet's output")
    noise: str = hp(
        "normal", "noise of the generator; uniform is on 0 to 1", choices=("normal", "uniform")
    )
    noise_width: int = hp(0, "width of the noise and inside RTNet (0: half the features)", low=0)
    means_rate: float = hp(0.3, "rate at which class means move (l_c)", low=0, high=1)
    means_ramp: bool = hp(False, "scale that rate by lambda")
    means_warm: bool = hp(False, "a class's first batch sets its mean")
    means_shrink: bool = hp(False, "means of classes that a batch lacks shrink")
    confusion: str = hp(
        "entropy", "how RTNet makes embeddings hard to tell", choices=tuple(CONFUSIONS)
    )
    rtnet_ramp: bool = hp(False, "RTNet learns at residuals scaled by lambda")
    cap: float = hp(1000.0, "distance from which the generator is not pushed on", low=0)
    augment: str = hp(
        "learned",
        "what makes embeddings: the networks, noise on the batch's, or none",
        choices=("learned", *NOISES, "none"),
        off="none",
    )
    spread: float = hp(0.1, "scale of that noise", low=0)
    use_generator: bool = hp(True, "have the generator (without: noise goes into RTNet)")
    use_rtnet: bool = hp(True, "have RTNet (without: the generator's output is the embedding)")
    stream: str = hp(
        "both",
        "embeddings made from the batch's, from class means, or both",
        choices=("both", "batch", "means"),
    )
    input_noise: float = hp(0.0, "normal noise on inputs in training (sigma)", low=0, off=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._learned and not (self.use_generator or self.use_rtnet):
            raise BadValue(
                "fraug has neither generator nor RTNet: keep one, or set augment=none for local "
                "batch norm alone"
            )

    # -- declarations --------------------------------------------------------------------------

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Attach generator, RTNet and class means."""
        if facts.task != "classification":
            raise BadValue(f"fraug needs one label per sample, and the task is {facts.task}")
        if not self._learned:
            return model
        width, classes, noise = facts.width, facts.classes, self._noise_width(facts.width)
        if self.use_generator:
            model.add_module(GENERATOR, Generator(noise, classes, width))
        if self.use_rtnet:
            model.add_module(RTNET, ResidualNet(width, classes, noise, self.rtnet_norm))
        model.add_module(MEANS, ClassMeans(classes, width, self.means_warm, self.means_shrink))
        return model

    def scope(self, name: str, module: nn.Module) -> Scope:
        """The generator is shared; RTNet, class means and batch norms are kept."""
        path = name.split(".")
        if path[0] == RTNET:
            return Scope("kept", "fraug-rtnet")
        if path[0] == MEANS:
            return Scope("kept", "frozen")
        norm = isinstance(module, _NORMS)
        if path[0] == GENERATOR:
            return Scope(
                "kept" if norm and self.local_generator_norm else "both", "fraug-generator"
            )
        shared = not self.local_norm or (self.share_downsample and "downsample" in path)
        return Scope("kept" if norm and not shared else "both")

    def phases(self) -> tuple[Phase, ...]:
        """Model, generator, RTNet, in this order."""
        found = [Phase()]
        for network, rate, used in (
            ("generator", self.lr_generator, self.use_generator),
            ("rtnet", self.lr_rtnet, self.use_rtnet),
        ):
            if self._learned and used:
                name = f"fraug-{network}"
                found.append(Phase(name, groups=(name,), terms=(name,), lr=rate))
        return tuple(found)

    # -- client --------------------------------------------------------------------------------

    def batch(self, x: Tensor, y: Tensor, ctx: Ctx) -> tuple[Tensor, Tensor]:
        """Noise on the inputs, where asked for."""
        if self.input_noise == 0:
            return x, y
        key = keys.fold_in(ctx.key, "input")
        return x + self.input_noise * keys.normal(key, tuple(x.shape), x.dtype), y

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """The terms of the phase that runs."""
        if self.augment == "none":
            return {}
        hard = y.argmax(dim=1) if y.is_floating_point() else y
        if ctx.phase == "model":
            return self._model_terms(out, y, hard, ctx, net)
        if ctx.phase == "fraug-generator":
            return {ctx.phase: self._generator_loss(out, ctx, net)}
        if ctx.phase == "fraug-rtnet":
            return {ctx.phase: self._rtnet_loss(out, hard, ctx, net)}
        return {}

    def _model_terms(
        self, out: Output, y: Tensor, hard: Tensor, ctx: Ctx, net: Net
    ) -> dict[str, Tensor]:
        """Cross-entropies of real embeddings, and of synthetic ones for the head alone."""
        real = task.loss(ctx.facts.task, out.logits, y)
        losses = [
            F.cross_entropy(net.head(made.detach()), label)
            for made, _, label in self._made(out, hard, ctx, net, self.ramp_residual)
        ]
        synthetic = torch.stack(losses).mean()
        if self.mixing == "sum":
            return {"task": real, "synthetic": synthetic}
        w = self._lambda(ctx).clamp_max(0.5)
        return {"task": (1.0 - w) * real, "synthetic": w * synthetic}

    def _generator_loss(self, out: Output, ctx: Ctx, net: Net) -> Tensor:
        """Embeddings of the right class, unlike those that the client has."""
        label = cyclic(ctx, len(out.x))
        made = net.call(GENERATOR, self._noise(ctx, "means", len(label)), label)
        if self.generator_distance == "l2":  # compares rows: those of one class
            real = net.call(MEANS).index_select(0, label)
        else:
            real = out.z.detach()
        away = DISTANCES[self.generator_distance](made.to(ctx.lr.dtype), real.to(ctx.lr.dtype))
        return F.cross_entropy(net.head(made), label) - self.alpha * away.clamp_max(self.cap)

    def _rtnet_loss(self, out: Output, hard: Tensor, ctx: Ctx, net: Net) -> Tensor:
        """Embeddings that are hard to tell, near to what the residuals were added to."""
        losses = []
        for made, base, label in self._made(out, hard, ctx, net, self.rtnet_ramp):
            confused = CONFUSIONS[self.confusion](net.head(made), label)
            losses.append(confused + self.beta * DISTANCES[self.rtnet_distance](made, base))
        return torch.stack(losses).mean()

    # -- synthetic embeddings ------------------------------------------------------------------

    def _made(
        self, out: Output, hard: Tensor, ctx: Ctx, net: Net, ramped: bool
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each stream: synthetic embeddings, what they were made from, and labels."""
        u = out.z.detach().to(ctx.lr.dtype)  # in full precision also where the network is not
        if not self._learned:
            key = keys.fold_in(ctx.key, "perturb")
            yield u + self.spread * NOISES[self.augment](key, tuple(u.shape), u.dtype), u, hard
            return
        strength = self._lambda(ctx) if ramped else 1.0
        rate = self.means_rate * self._lambda(ctx) if self.means_ramp else self.means_rate
        means = net.call(MEANS, u, hard, rate)  # they move in the model's phase alone
        if self.stream != "batch":
            label = cyclic(ctx, len(u))
            base = means.index_select(0, label)
            yield self._embedding(base, label, "means", ctx, net, strength), base, label
        if self.stream != "means":
            yield self._embedding(u, hard, "batch", ctx, net, strength), u, hard

    def _embedding(
        self, base: Tensor, y: Tensor, name: str, ctx: Ctx, net: Net, strength: float | Tensor
    ) -> Tensor:
        """base + strength (made - base), where made is base + residual, or the generator's own."""
        made = self._noise(ctx, name, len(base))
        if self.use_generator:
            made = net.call(GENERATOR, made, y)
        residual: Tensor = net.call(RTNET, made, y) if self.use_rtnet else made - base
        return base + strength * residual

    def _noise(self, ctx: Ctx, name: str, rows: int) -> Tensor:
        """Fresh noise for a stream of the phase: the generator's input, or RTNet's without one."""
        key = keys.fold_in(keys.fold_in(ctx.key, ctx.phase), name)
        width = ctx.facts.width
        shape = (rows, self._noise_width(width) if self.use_generator else width)
        draw = keys.normal if self.noise == "normal" else keys.uniform
        return draw(key, shape, ctx.lr.dtype)

    def _lambda(self, ctx: Ctx) -> Tensor:
        """The ramp of this round; by itself it starts at exp(-2), however many rounds there are."""
        rounds = ctx.protocol.rounds
        rate = self.ramp_rate or 2.0 / rounds
        return RAMPS[self.ramp](ctx.round.to(ctx.lr.dtype), rounds, rate)

    def _noise_width(self, width: int) -> int:
        return self.noise_width or max(1, width // 2)

    @property
    def _learned(self) -> bool:
        return self.augment == "learned"


def cyclic(ctx: Ctx, rows: int) -> Tensor:
    """Labels that go on through the classes from step to step: s, s + 1, … modulo their number."""
    start = (ctx.round * ctx.steps + ctx.step) * rows
    label: Tensor = (start + torch.arange(rows, device=start.device)) % ctx.facts.classes
    return label
