"""The style of features: mean and standard deviation of every channel of every sample.

Features of any kind are brought to one shape first, [B, C, P] with P positions: maps [B, C, H, W]
(or with more or fewer axes of space), tokens [B, T, C], vectors [B, C] (one position). An output of
three axes is read as tokens: a one-dimensional convolution has to swap its axes within its stage,
and so has a network whose maps have their channels last.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedshift.errors import BadModel, UnknownName

EPS = 1e-6  # added to variances whose root divides


def as_maps(x: Tensor) -> Tensor:
    """Features as [B, C, P], in float32 at least.

    >>> as_maps(torch.zeros(2, 5, 3)).shape, as_maps(torch.zeros(2, 5, 3, 4)).shape
    (torch.Size([2, 3, 5]), torch.Size([2, 5, 12]))
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if x.dim() == 2:
        return x.unsqueeze(2)
    return x.transpose(1, 2) if x.dim() == 3 else x.flatten(2)


def from_maps(maps: Tensor, like: Tensor) -> Tensor:
    """[B, C, P] in the shape and type of the features that it was made from.

    >>> x = torch.arange(12.0).reshape(1, 4, 3)
    >>> torch.equal(from_maps(as_maps(x), x), x)
    True
    """
    back = maps.transpose(1, 2) if like.dim() == 3 else maps.reshape(like.shape)
    return back.to(like.dtype)


def channels(shape: tuple[int, ...]) -> int:
    """How many channels a stage's output of this shape (of one sample) has.

    >>> channels((64, 7, 7)), channels((49, 96)), channels((10,))
    (64, 96, 10)
    """
    return shape[-1] if len(shape) == 2 else shape[0]


def positions(shape: tuple[int, ...]) -> int:
    """How many positions a stage's output of this shape has; one means that it has no style.

    >>> positions((64, 7, 7)), positions((49, 96)), positions((10,))
    (49, 49, 1)
    """
    count = 1
    for n in shape:
        count *= n
    return count // channels(shape)


def variance(x: Tensor, dim: int, unbiased: bool = False) -> Tensor:
    """The variance over an axis; of a single value it is 0, unbiased or not.

    >>> variance(torch.tensor([[1.0, 3.0]]), 1, unbiased=True), variance(torch.ones(1), 0, True)
    (tensor([2.]), tensor(0.))
    """
    return x.var(dim=dim, correction=int(unbiased and x.shape[dim] > 1))


def moments(maps: Tensor, eps: float = EPS, unbiased: bool = False) -> Tensor:
    """Mean and standard deviation over the positions, [2, B, C]; eps is under the root.

    >>> mean, std = moments(torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]), eps=0.0)
    >>> mean.item(), round(std.item(), 6)
    (2.5, 1.118034)
    """
    mean = maps.mean(dim=2)
    count = maps.shape[2] - int(unbiased and maps.shape[2] > 1)
    # spelt out: torch's var is exact too, but takes three times as long on a CPU
    var = (maps - mean.unsqueeze(2)).square().sum(dim=2) / count
    return torch.stack([mean, (var + eps).sqrt()])


def restyle(maps: Tensor, old: Tensor, new: Tensor, acts: Tensor) -> Tensor:
    """Replace a style by another: means and standard deviations [2, B, C], or means [1, B, C].

    Where `acts` is False, maps stay as they are to the bit, and so do their gradients.

    >>> x = torch.tensor([[[1.0, 3.0]]])
    >>> restyle(x, moments(x, eps=0.0), torch.tensor([[[0.0]], [[5.0]]]), torch.tensor(True))
    tensor([[[-5.,  5.]]])
    """
    factor = new[1] / old[1] if len(old) == 2 else torch.ones_like(old[0])
    # s'/s (x - m) + m' as one product and one sum over the maps; m is only known up to its own
    # rounding, so nothing is lost
    factor, offset = (
        torch.where(acts, factor, 1.0),
        torch.where(acts, new[0] - factor * old[0], 0.0),
    )
    return factor.unsqueeze(2) * maps + offset.unsqueeze(2)


def chosen(shapes: Mapping[str, tuple[int, ...]], text: str) -> dict[str, tuple[int, ...]]:
    """The stages that a text names, with their shapes.

    Args:
        shapes: of every stage's output for one sample, in order.
        text: "maps" (every stage whose output has more than one position), "early" (the first two
            of these), "all", "none", or stages joined by commas, by their names or counted from 1.

    >>> shapes = {"conv1": (64, 7, 7), "conv2": (192, 3, 3), "fc": (10,)}
    >>> list(chosen(shapes, "maps")), list(chosen(shapes, "conv2, 3"))
    (['conv1', 'conv2'], ['conv2', 'fc'])
    """
    if text in ("all", "none"):
        return dict(shapes) if text == "all" else {}
    if text in ("maps", "early"):
        found = {s: shape for s, shape in shapes.items() if positions(shape) > 1}
        if not found:
            raise BadModel(
                "no stage of the model gives maps or tokens, whose channels have a style: "
                f"name its stages, or 'all' (they are {', '.join(shapes) or 'none'})"
            )
        return dict(list(found.items())[:2]) if text == "early" else found
    wanted = {_named(part.strip(), tuple(shapes)) for part in text.split(",")}
    return {s: shape for s, shape in shapes.items() if s in wanted}


def with_style(
    shapes: Mapping[str, tuple[int, ...]], text: str, owner: str
) -> dict[str, tuple[int, ...]]:
    """The stages that a text names, refused for `owner` where one has a single position.

    >>> list(with_style({"conv": (64, 7, 7), "fc": (10,)}, "conv", "mixstyle.layers"))
    ['conv']
    """
    stages = chosen(shapes, text)
    for stage, shape in stages.items():
        if positions(shape) == 1:
            raise BadModel(
                f"{owner} names stage '{stage}', whose channels have one value each and so no "
                "style: name stages of maps or tokens, or 'maps'"
            )
    return stages


def _named(part: str, stages: tuple[str, ...]) -> str:
    if part.isdecimal() and 1 <= int(part) <= len(stages):
        return stages[int(part) - 1]
    if part not in stages:
        raise UnknownName("stage", part, [*stages, "maps", "early", "all", "none"])
    return part
