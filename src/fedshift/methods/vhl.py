"""# VHL: virtual images that all clients share

What clients cannot share is data. Noise they can: all of them hold the same labelled images of pure
noise, learn to tell their classes too, and pull the features of a real class to those of a virtual
one. So features of different clients come to lie together. The paper is Tang et al., Virtual
Homogeneity Learning: Defending against Data Heterogeneity in Federated Learning, ICML 2022.

## The loss

Real classes are 0 to C - 1, virtual ones C to 2C - 1, and the network has outputs for both. With
features z and z_v of a real and a virtual batch with labels y and y_v, and SupCon the supervised
contrast of Khosla et al., NeurIPS 2020, at a temperature of 0.07,

    CE(real) + alpha CE(virtual) + align [SupCon(z and z_v) + 0.1 SupCon(z_v)]

In the first contrast, virtual features are held still and virtual class C + c counts as class c.
The bracket counts in the first five local epochs of a round.

Predictions look at the first C outputs alone.

## When to use it

For classification, when labels are skewed between clients. A step passes a batch of virtual images
more through the network. The outputs for virtual classes are a layer beside the head, on the same
features; for a head of one layer this is a head of 2C outputs.

## What crosses the wire

Both ways: the model with its further C outputs. Virtual images do not cross: they follow from
`virtual_seed`, and every site makes its own at each step, the same as all others up to rounding.

## Differences from the released code

- Its images are made by an untrained StyleGAN-v2, before training. Here an untrained network of a
  few convolutions answers latents that lie around a centre for each class (`parts.virtual`), each
  image with mean 0 and spread 1.
- Its set has 2000 images for 10 classes, 20000 for 100: `virtual_size`, for each class.
- In FedBR's code of this baseline, logits take the place of features, and no virtual label ever
  equals a real one (`matching="fedbr"`).
- Running statistics of batch norm are of real images alone; `virtual_mode="train"` lets virtual
  ones in. Training itself is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift import keys
from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Method
from fedshift.parts.contrast import supervised
from fedshift.parts.virtual import Virtual

if TYPE_CHECKING:
    from fedshift.net import Net, Output

HEAD = "vhl_head"


@dataclass(frozen=True)
class VHL(Method):
    """Virtual classes of noise, to which real ones are drawn.

    >>> VHL(virtual_batch=32).alpha
    1.0
    """

    name: ClassVar[str] = "vhl"
    paper: ClassVar[str] = (
        "Tang et al., Virtual Homogeneity Learning: Defending against Data Heterogeneity in "
        "Federated Learning, ICML 2022"
    )
    tasks: ClassVar[tuple[str, ...]] = ("classification",)

    alpha: float = hp(1.0, "weight of telling virtual classes (alpha)", low=0, off=0.0)
    align: float = hp(1.0, "weight of drawing real classes to virtual ones", low=0, off=0.0)
    align_virtual: float = hp(0.1, "weight of contrast among virtual images, within that", low=0)
    align_epochs: int = hp(5, "local epochs of a round in which features are drawn", low=1)
    temperature: float = hp(0.07, "temperature of the contrast", low=1e-3)
    virtual_batch: int = hp(128, "virtual images in a step", low=2, quick=8)
    virtual_size: int = hp(200, "virtual images of each class", low=1)
    virtual_seed: int = hp(0, "what virtual images follow from", low=0)
    virtual_mode: str = hp(
        "apart", "whether virtual images move running statistics", choices=("train", "apart")
    )
    matching: str = hp(
        "paper",
        "features and classes are matched, or as in FedBR's code",
        choices=("paper", "fedbr"),
    )

    @property
    def _idle(self) -> bool:
        return self.alpha == 0 and self.align == 0

    @property
    def _seed(self) -> int:
        return keys.fold(self.virtual_seed, self.name)

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Attach the outputs for virtual classes."""
        if not self._idle:
            model.add_module(HEAD, nn.Linear(facts.width, facts.classes))
        return model

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """Real classes among twice as many; virtual ones; and the pull between the two."""
        if self._idle or ctx.phase != "model":
            return {}
        classes = ctx.facts.classes
        x_v, y_v = self._virtual(out.x, ctx)
        shown = net if self.virtual_mode == "train" else net.aside()
        z_v = shown.features(x_v)
        real, logits_v = _whole(out.z, out.logits, net), _whole(z_v, shown.head(z_v), shown)
        soft = F.pad(y, (0, classes)) if y.is_floating_point() else y
        terms = {"task": F.cross_entropy(real, soft)}
        if self.alpha:
            terms["virtual"] = self.alpha * F.cross_entropy(logits_v, classes + y_v)
        if self.align:
            hard = y.argmax(dim=1) if y.is_floating_point() else y
            if self.matching == "fedbr":
                pull = self._pull(real, hard, logits_v, y_v - classes)
            else:
                pull = self._pull(out.z, hard, z_v, y_v)
            here = (ctx.epoch < self.align_epochs).to(pull.dtype)
            terms["alignment"] = self.align * here * pull
        return terms

    def _virtual(self, x: Tensor, ctx: Ctx) -> tuple[Tensor, Tensor]:
        """A batch of virtual images like x, and their classes from 0."""
        classes = ctx.facts.classes
        key = keys.fold_in(ctx.key, "virtual")
        drawn = keys.integers(key, classes * self.virtual_size, (self.virtual_batch,))
        # filled, not copied: a CUDA graph cannot copy from the host
        seed = torch.full((), self._seed, dtype=torch.int64, device=x.device)
        y = drawn % classes
        return Virtual(ctx.facts.shape)(seed, y, drawn // classes, x.dtype), y

    def _pull(self, z: Tensor, y: Tensor, z_v: Tensor, y_v: Tensor) -> Tensor:
        """Contrast of real with still virtual representations, and of virtual ones."""
        both = torch.cat([z, z_v.detach()])
        pull = supervised(both, torch.cat([y, y_v]), self.temperature)
        return pull + self.align_virtual * supervised(z_v, y_v, self.temperature)


def _whole(z: Tensor, logits: Tensor, net: Net) -> Tensor:
    """Logits of real classes, then of virtual ones."""
    return torch.cat([logits, net.call(HEAD, z)], dim=1)
