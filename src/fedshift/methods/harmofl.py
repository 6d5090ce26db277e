"""# HarmoFL: one amplitude spectrum for all, and flat minima

Scanners and cameras differ in how strong each spatial frequency comes out. HarmoFL gives all images
the same amplitudes, the mean over everybody's, and leaves them their phase; and it takes each
gradient a step uphill, so that models end where the loss is flat and bear being averaged. The paper
is Jiang, Wang and Dou, HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on
Heterogeneous Medical Images, AAAI 2022.

## The step

A layer in front of the network, in training and in evaluation: with A the shared amplitudes and P
the phase of the input's two-dimensional Fourier transform,

    x' = inverse transform of A exp(i P)

In the first round A is the client's own moving average of amplitudes: the first batch's mean, then
A <- (1 - momentum) A + momentum (mean over the batch). The server takes the plain mean of those of
the round's participants, and from the second round on it stays as it is.

Then g = grad L(w) on the harmonised batch, and the step is taken with grad L(w + alpha g / ||g||):
FedSAM's rule.

## When to use it

On images of one size whose sites differ in intensity and texture, medical ones above all, and one
global model. It doubles the time of a step. `alpha=0` and `amplitude=none` together are off; with
one of them it is the other half of the method.

## What crosses the wire

The model, with the amplitudes beside it: C x H x (W / 2 + 1) numbers each way in every round, an
average over a client's images. Which half of the frequencies is sent makes no difference: images
are real.

## Differences from the released code

- It replaces the amplitude of frequency 0 alone, the mean intensity: `amplitude=dc`. The paper
  replaces all.
- Its momentum is rounded to 0, so that A stays that of the first batch: `momentum=0`.
- There, both passes of a step move A and the running statistics; here the first does. And there the
  optimizer's state is kept over rounds: `reset_optimizer=False` of the protocol.
- It cuts all clients to the size of the smallest; nothing is cut here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from fedshift.errors import BadModel
from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Method, Objective, State, Uploads
from fedshift.net import insert_first
from fedshift.parts.sharpness import uphill
from fedshift.parts.spectrum import amplitude, with_amplitude, with_mean
from fedshift.tree import Tree

if TYPE_CHECKING:
    from fedshift.net import Net

LAYER = "harmofl_amplitude"
NOTHING, OWN, SHARED = 0, 1, 2  # what the layer's amplitudes are


@dataclass(frozen=True)
class HarmoFL(Method):
    """Harmonised amplitudes and sharpness-aware steps.

    >>> HarmoFL(amplitude="dc", momentum=0.0).alpha
    0.05
    """

    name: ClassVar[str] = "harmofl"
    paper: ClassVar[str] = (
        "Jiang et al., HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on "
        "Heterogeneous Medical Images, AAAI 2022"
    )
    content: ClassVar[dict[str, str]] = {LAYER: "statistics"}

    alpha: float = hp(0.05, "how far uphill the gradient is taken (alpha)", low=0, off=0.0)
    amplitude: str = hp(
        "full",
        "which amplitudes are replaced: all, that of frequency 0 alone (as released), or none",
        choices=("full", "dc", "none"),
        off="none",
    )
    momentum: float = hp(
        0.1, "weight of a new batch in the moving average (0 as released)", low=0, high=1
    )

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Put the layer in front of the network."""
        if self.amplitude == "none":
            return model
        if len(facts.shape) != 3:
            raise BadModel(
                f"harmofl harmonises images [C, H, W], and the inputs have shape {facts.shape}: "
                "set harmofl.amplitude to none, or choose fedsam"
            )
        layer = Harmonised(facts.shape, self.momentum, whole=self.amplitude == "full")
        insert_first(model, facts.shape, LAYER, layer)
        return model

    def gradient(self, loss: Objective, params: Tree, ctx: Ctx) -> Tree:
        """The gradient uphill."""
        grads = loss.grad(params)
        if self.alpha == 0 or ctx.phase != "model":
            return grads
        return loss.grad(uphill(params, grads, self.alpha))

    def combine(self, name: str, stacked: Tensor, weights: Tensor) -> Tensor | None:
        """Amplitudes take the plain mean, whatever weights the models have."""
        return stacked.mean(dim=0) if name == f"{LAYER}.amplitude" else None

    def after(
        self, new: Tree, uploads: Uploads, server: State, net: Net, key: int
    ) -> tuple[Tree, State]:
        """What the first round gave stays."""
        name, known = f"{LAYER}.amplitude", f"{LAYER}.known"
        if name not in new or not uploads.model:  # without training nothing has come
            return new, server
        if not server.tensors:
            server = State({"amplitude": new[name]})
        fixed = {name: server.tensors["amplitude"], known: torch.full_like(new[known], SHARED)}
        return {**new, **fixed}, server


class Harmonised(nn.Module):
    """Gives images the amplitudes that it holds; until the federation's came, it averages its own.

    Args:
        shape: of one image.
        momentum: weight of a new batch in the moving average.
        whole: all amplitudes, or that of frequency 0 alone.
    """

    amplitude: Tensor
    known: Tensor

    def __init__(self, shape: tuple[int, ...], momentum: float, whole: bool) -> None:
        super().__init__()
        self.momentum, self.whole = momentum, whole
        channels, rows, columns = shape
        self.register_buffer("amplitude", torch.zeros(channels, rows, columns // 2 + 1))
        self.register_buffer("known", torch.tensor(NOTHING))

    def forward(self, x: Tensor) -> Tensor:
        """The images with the amplitudes held; as they are where there are none yet."""
        if self.training:
            self.observe(x)
        new = (with_amplitude if self.whole else with_mean)(x, self.amplitude)
        return torch.where(self.known == NOTHING, x, new)

    @torch.no_grad()
    def observe(self, x: Tensor) -> None:
        """Move the average, unless it is the federation's: the first batch sets it."""
        batch = amplitude(x).mean(dim=0).to(self.amplitude.dtype)
        rate = torch.where(self.known == NOTHING, 1.0, self.momentum)
        rate = torch.where(self.known == SHARED, 0.0, rate).to(batch.dtype)
        self.amplitude.copy_(torch.lerp(self.amplitude, batch, rate))
        self.known.clamp_min_(OWN)
