"""# DAC-SC: what normalisation does to phase, and how much style stays

The phase of a feature map's spectrum is taken for its content, the amplitude for its style. Two
layers hold what a normalisation does to each: SCNorm learns how much of the style to keep, CCNorm
keeps the content that batch norm changes. Unlike an augmentation they act in evaluation too. The
paper is Lee, Bae and Kim, Decompose, Adjust, Compose: Effective Normalization by Playing with
Frequency for Domain Generalization, CVPR 2023.

## The step

The task's own loss. Behind early stages, SCNorm gives the map that has the phase of x and the
amplitude a1 |F(IN x)| + a2 |F(x)|, with (a1, a2) = softmax(h / 0.1), h learnt from 0. In the place
of a batch norm, CCNorm gives the map that has the amplitude of BN(x) and the phase of x - b mu, mu
being the mean that BN takes away. Both end with a weight and a bias for each channel.

No spectrum need be computed for that. Normalising scales a channel and shifts it; so all
frequencies but 0 keep their phase, and frequency 0 is the mean. With m and s of a sample's channel,
and the sign of 0 being +1,

    SCNorm(x) = a1 (x - m) / s + a2 x
    CCNorm(x) = BN(x) - c + sign(m - b mu) |c|,   c the mean of BN(x) over positions

which is the same number for number. It also shows that b only ever acts through a sign: no gradient
reaches it, and it stays where it began. So it is a hyperparameter here (`share`): 1 is batch norm
itself, 0 keeps the phase whole (the paper's PCNorm), and 1/2 is where the learnt one begins.

## When to use it

On networks with batch norm, for inputs whose style differs; beside FedFA (`fedfa+dac-sc`) and local
batch norm: CCNorm counts as one. `layers=none` and `replace=none` together are off.

The published places are those of a ResNet: SCNorm at the end of early stages, CCNorm for the last
batch norm of blocks that lower the resolution. Here SCNorm goes behind the first two stages of maps
(`layers=early`), CCNorm takes the place of the last batch norm of every stage whose maps are
smaller than what came in (`replace=down`). A network without batch norms gets SCNorm alone.

## What crosses the wire

The model, with 2 + 2 C numbers more for every SCNorm of C channels.

## Differences from other codes

Spectra are not computed (above), so that no amplitude of 0 has to be guarded against.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift.errors import BadModel
from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Method
from fedshift.net import insert_after
from fedshift.parts import style

EPS = 1e-5
TEMPERATURE = 0.1  # of the softmax over the two amplitudes


@dataclass(frozen=True)
class DACSC(Method):
    """Normalisations that control style and content.

    >>> DACSC(share=0.0).layers
    'early'
    """

    name: ClassVar[str] = "dac-sc"
    paper: ClassVar[str] = (
        "Lee et al., Decompose, Adjust, Compose: Effective Normalization by Playing with "
        "Frequency for Domain Generalization, CVPR 2023"
    )

    layers: str = hp(
        "early",
        "stages with SCNorm behind: early, maps, all, none, or names or numbers by commas",
        off="none",
    )
    replace: str = hp(
        "down",
        "stages whose last batch norm becomes CCNorm: those that lower the resolution (down), or "
        "as above",
        off="none",
    )
    share: float = hp(
        0.5, "share of its mean that CCNorm takes away before the phase (b)", low=0, high=1
    )

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Replace batch norms, then put layers behind stages."""
        for stage in self._replaced(facts):
            norms = list(_batch_norms(model.get_submodule(stage)))
            if norms:
                owner, name = norms[-1]
                setattr(owner, name, CCNorm(getattr(owner, name), self.share))
            elif self.replace not in ("down", "maps", "all"):
                raise BadModel(
                    f"dac-sc.replace names stage '{stage}', which has no batch norm over maps: "
                    "name another, or 'none'"
                )
        for stage, shape in style.with_style(
            facts.stage_shapes, self.layers, "dac-sc.layers"
        ).items():
            insert_after(
                model, stage, "dac_sc_" + stage.replace(".", "_"), SCNorm(style.channels(shape))
            )
        return model

    def _replaced(self, facts: Facts) -> list[str]:
        """The stages of which a batch norm is replaced."""
        shapes = facts.stage_shapes
        if self.replace != "down":
            return list(style.chosen(shapes, self.replace))
        before = [facts.shape, *shapes.values()]
        return [
            stage
            for (stage, shape), old in zip(shapes.items(), before)
            if style.positions(shape) < style.positions(old)
        ]


def _batch_norms(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """The batch norms over maps within a module, each by the module that holds it and its name."""
    for owner in module.modules():
        for name, child in owner.named_children():
            if isinstance(child, nn.BatchNorm2d):
                yield owner, name


class SCNorm(nn.Module):
    """Keeps the phase of maps, with a learnt share of their own amplitude.

    Args:
        channels: of the maps.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mixture = nn.Parameter(torch.zeros(2))
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """a1 (x - m) / s + a2 x, then weight and bias."""
        maps = style.as_maps(x)
        mean, std = style.moments(maps, EPS).unsqueeze(3)
        share = torch.softmax(self.mixture / TEMPERATURE, dim=0)
        kept = share[0] * (maps - mean) / std + share[1] * maps
        return style.from_maps(self.weight[:, None] * kept + self.bias[:, None], x)


class CCNorm(nn.BatchNorm2d):
    """Batch norm that keeps the content which its shift would change.

    Args:
        norm: the batch norm in whose place it stands, from which it takes tensors and settings.
        share: the share b of the mean that is taken away before the phase is looked at.
    """

    def __init__(self, norm: nn.BatchNorm2d, share: float) -> None:
        if norm.momentum is None:
            raise BadModel(
                "dac-sc cannot take the place of a batch norm without momentum: give it one, such "
                "as 0.1"
            )
        super().__init__(
            norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats
        )
        self.share = share
        tensors = norm.state_dict()
        for like in list(tensors.values())[:1]:
            self.to(like)
        self.load_state_dict(tensors)

    def forward(self, x: Tensor) -> Tensor:
        """BN(x) with the sign that each channel's mean had, then weight and bias."""
        own = x.mean((2, 3), keepdim=True)
        by_batch = self.training or self.running_mean is None
        mu = own.mean(0) if by_batch else self.running_mean.reshape(-1, 1, 1)  # type: ignore[union-attr]
        normal = self._normalised(x, by_batch)
        centre = normal.mean((2, 3), keepdim=True)
        sign = torch.where(own - self.share * mu < 0, -1.0, 1.0).to(centre.dtype)
        y = normal + (sign * centre.abs() - centre)
        if self.weight is None:
            return y
        return _per_channel(self.weight, y) * y + _per_channel(self.bias, y)

    def _normalised(self, x: Tensor, by_batch: bool) -> Tensor:
        """Batch norm before weight and bias; running statistics move in training."""
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        assert self.momentum is not None
        return F.batch_norm(
            x, self.running_mean, self.running_var, None, None, by_batch, self.momentum, self.eps
        )


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.to(like.dtype).reshape(-1, 1, 1)
