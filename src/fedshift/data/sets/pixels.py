"""Sets that differ in channels and size brought to one form, and the papers' pipelines."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedshift.data.augment import ColorJitter, Flip, Grayscale, Pipeline, ResizedCrop
from fedshift.federation import Samples

_AT_A_TIME = 1024  # images that are resized at once, in float64

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
# FRAug and FedLSI: windows of 70 % and more, colours, now and then none at all.
_COLOURS = (ColorJitter(0.3, 0.3, 0.3, 0.3), Grayscale(0.1))
PHOTOS = Pipeline(MEAN, STD, augment=(ResizedCrop(0.7, 1.0), Flip(0.5), *_COLOURS))
DIGITS = Pipeline(MEAN, STD, augment=(ResizedCrop(0.7, 1.0), *_COLOURS))
BYTES = Pipeline(mean=(0.0,), std=(1 / 255,))  # the network sees 0 to 255


def rgb(samples: Samples) -> Samples:
    """Grey images with their channel three times; others as they are.

    >>> rgb(Samples(torch.zeros(2, 1, 4, 4), torch.zeros(2))).x.shape
    torch.Size([2, 3, 4, 4])
    """
    if samples.x.shape[1] == 3:
        return samples
    return Samples(samples.x.repeat(1, 3, 1, 1), samples.y)


def resized(samples: Samples, side: int) -> Samples:
    """uint8 images stretched to side x side, averaging where they shrink.

    >>> x = torch.tensor([[[[0, 200], [0, 200]]]], dtype=torch.uint8)
    >>> resized(Samples(x, torch.zeros(1)), 1).x.flatten().tolist()
    [100]
    """
    if tuple(samples.x.shape[2:]) == (side, side):
        return samples
    return Samples(
        torch.cat([_resize(x, side) for x in torch.split(samples.x, _AT_A_TIME)]), samples.y
    )


def _resize(x: Tensor, side: int) -> Tensor:
    # In float64, so that rounding gives the same bytes on every machine.
    wide = F.interpolate(
        x.to(torch.float64), (side, side), mode="bilinear", antialias=True, align_corners=False
    )
    return wide.round().clamp(0, 255).to(torch.uint8)
