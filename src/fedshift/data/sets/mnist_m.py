"""MNIST-M as Ganin et al. (2016) make it: digits blended with photographs of BSDS500.

Each digit is laid over a random window of a photograph, and where the digit is, the window's
colours turn: the absolute difference of the two. Which window, follows from a seed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedshift import keys
from fedshift.data import images
from fedshift.data.sets.reading import Splits
from fedshift.errors import BadData
from fedshift.federation import Samples


def blend(digits: Tensor, photographs: list[Tensor], seed: int = 0) -> Tensor:
    """Digits [N, 1, H, W] over windows of photographs [3, *, *], all uint8, as RGB [N, 3, H, W].

    >>> digit = torch.tensor([[[[0, 255]]]], dtype=torch.uint8)
    >>> photograph = torch.full((3, 1, 2), 100, dtype=torch.uint8)
    >>> blend(digit, [photograph])[0, 0].tolist()
    [[100, 155]]
    """
    height, width = digits.shape[-2:]
    each = keys.fold_in(keys.as_tensor(keys.fold(seed, "mnist-m")), torch.arange(len(digits)))
    which = keys.integers(keys.fold_in(each, "photograph"), len(photographs)).tolist()
    place = keys.uniform(keys.fold_in(each, "window"), (2,), torch.float64).tolist()
    out = torch.empty((len(digits), 3, height, width), dtype=torch.uint8)
    for k, (photograph, (down, right)) in enumerate(zip(which, place)):
        whole = photographs[photograph]
        top = int(down * (whole.shape[1] - height + 1))
        left = int(right * (whole.shape[2] - width + 1))
        window = whole[:, top : top + height, left : left + width]
        out[k] = (window.to(torch.int16) - digits[k].to(torch.int16)).abs().to(torch.uint8)
    return out


def made(mnist: Splits, bsds: Path, seed: int = 0) -> Splits:
    """Both splits of MNIST as MNIST-M; training and test take windows of the same photographs."""
    paths = sorted(bsds.rglob("*.jpg"))
    if not paths:
        raise BadData(f"{bsds} holds no .jpg: put the folder images/ of BSDS500 there")
    heads = images.headers(paths)
    photographs = [
        torch.from_numpy(np.array(images.decode(path, head.size, grey=False)))
        for path, head in zip(paths, heads)
    ]
    return {
        split: Samples(blend(s.x, photographs, keys.fold(seed, split)), s.y)
        for split, s in mnist.items()
    }
