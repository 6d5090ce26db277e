"""# Embedding noise: a head that also learns from perturbed features

The plainest augmentation in embedding space: each batch's features are seen by the head twice, as
they are and with noise added. FRAug's Table 7 compares its learnt residuals with three such noises.
The paper is Chen et al., FRAug: Tackling Federated Learning with Non-IID Features via
Representation Augmentation, ICCV 2023.

## The loss

With features z of a batch, the head h, and fresh noise dz in every step,

    L(h(z), y) + weight L(h(z + dz), y)

with the task's L. Noise is uniform on -g to g, Laplace of scale g, or normal of standard deviation
g. With `unit=batch`, g is in units of each feature's standard deviation over the batch. The second
part reaches the head alone (`head_only`).

## When to use it

With any method, as a measure of what more elaborate augmentations are worth. It costs a pass
through the head. `weight=0` is off.

## What crosses the wire

Nothing beside the model.

## Differences from the paper

It tunes g and does not give the values, nor their unit: features of one network are a hundred times
those of another, hence `unit=batch`; `unit=absolute` takes g as it is. For N(0, g) it leaves open
whether g is the variance; here it is the standard deviation. That noisy features train the head
alone is inferred from the words "train the prediction head" and from FRAug's own synthetic loss. In
FRAug's frame, with its weights and ramps and local batch norm, the same noises are
`fraug` with `augment=uniform`, `laplace` or `normal`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from fedshift import keys, task
from fedshift.hparam import hp
from fedshift.method import Ctx, Method
from fedshift.parts.noise import NOISES, perturbed
from fedshift.parts.style import variance

if TYPE_CHECKING:
    from fedshift.net import Net, Output


@dataclass(frozen=True)
class EmbeddingNoise(Method):
    """A second loss, of features with noise.

    >>> EmbeddingNoise(noise="laplace", spread=0.1).unit
    'batch'
    """

    name: ClassVar[str] = "embedding-noise"
    paper: ClassVar[str] = (
        "Chen et al., FRAug: Tackling Federated Learning with Non-IID Features via Representation "
        "Augmentation, ICCV 2023 (Table 7)"
    )

    noise: str = hp("normal", "what is added to features", choices=tuple(NOISES))
    spread: float = hp(0.5, "scale of the noise (g)", low=0)
    unit: str = hp(
        "batch",
        "g times each feature's standard deviation over the batch, or g itself",
        choices=("batch", "absolute"),
    )
    weight: float = hp(1.0, "weight of the noisy features' loss", low=0, off=0.0)
    head_only: bool = hp(True, "noisy features train the head alone")

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """The task's loss of noisy features."""
        if self.weight == 0 or ctx.phase != "model":
            return {}
        z = out.z.detach() if self.head_only else out.z
        z = z.to(ctx.lr.dtype)  # exact also where the network computes in bf16
        spread: float | Tensor = self.spread
        if self.unit == "batch":
            spread = self.spread * variance(z.detach(), 0).sqrt()
        noisy = perturbed(z, self.noise, spread, keys.fold_in(ctx.key, "noise"))
        return {"noisy": self.weight * task.loss(ctx.facts.task, net.head(noisy), y)}
