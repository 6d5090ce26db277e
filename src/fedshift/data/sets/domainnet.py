"""DomainNet: six styles of drawings and photographs, ten classes as FedBN has them or all 345."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedshift.data.augment import Flip, Pipeline, Rotate
from fedshift.data.sets import cutting, pixels, reading, trees
from fedshift.errors import BadData
from fedshift.federation import Federation

DOMAINS = dict.fromkeys(("clipart", "infograph", "painting", "quickdraw", "real", "sketch"), ())
TEN = (
    "bird", "feather", "headphones", "ice_cream", "teapot",
    "tiger", "whale", "windmill", "wine_glass", "zebra",
)  # fmt: skip
PUBLISHED = {  # images of the ten classes: FedBN's training and test lists together
    "clipart": 2629, "infograph": 3283, "painting": 3091, "quickdraw": 5000, "real": 6081,
    "sketch": 2767,
}  # fmt: skip
_CONTENTS = (
    "clipart/, infograph/, painting/, quickdraw/, real/ and sketch/, each with class folders"
)
_FEDBN = Pipeline(augment=(Flip(0.5), Rotate(30.0)))


def ten(
    name: str, seed: int = 0, size: int = 256, ratio: float = 1.0, whole_test: bool = False
) -> Federation:
    """Six clients, ten classes: four fifths of the images are FedBN's training list, one its test.

    Of the list, the first four fifths train and the last validates. FedFA trains on 0.4 of its four
    fifths (its released configuration says 0.6). FedBN's own lists are pickles, which are not
    read: images are drawn class by class in the same numbers.

    Args:
        name: of the federation.
        seed: what the splits follow from.
        size: a side in pixels.
        ratio: share of the training images that is used.
        whole_test: test on the whole domain, as FedLSI does with domains that took no part. Only
            scores of held-out clients are then fair.
    """
    tree = trees.scan("domainnet", _CONTENTS, DOMAINS, classes=TEN, published=PUBLISHED)

    def cut(domain: str, y: Tensor, order: Tensor) -> Sequence[Tensor]:
        train, held, test = cutting.pieces(y, sizes(len(y), ratio), order, f"'{domain}'")
        return train, held, torch.arange(len(y)) if whole_test else test

    return Federation(
        name,
        tree.clients(cut, size, seed),
        tree.classes,
        pixels.PHOTOS if whole_test else _FEDBN,
        recommended={"model": "small-cnn", "rounds": 400, "batch": 32, "lr": 0.01},
    )


def sizes(n: int, ratio: float) -> tuple[int, int, int]:
    """Sizes of training, validation and test for a domain of n images.

    >>> [sizes(n, 0.4) for n in PUBLISHED.values()][:3]
    [(672, 420, 526), (840, 525, 657), (791, 494, 619)]
    """
    listed = int(0.8 * n)
    return int(0.8 * ratio * listed), int(0.2 * listed), n - listed


def full(name: str, seed: int = 0, size: int = 64) -> Federation:
    """Six clients, all classes, cut by the official lists `<domain>_{train,test}.txt`.

    A tenth of the training list is for validation.
    """
    contents = f"{_CONTENTS}, and the official lists such as clipart_train.txt, clipart_test.txt"
    tree = trees.scan("domainnet", contents, DOMAINS)
    lists = {d: [_listed(tree, d, part, contents) for part in ("train", "test")] for d in DOMAINS}

    def cut(domain: str, y: Tensor, order: Tensor) -> Sequence[Tensor]:
        train, test = lists[domain]
        val = len(train) // 10
        counts = (len(train) - val, val)
        own = cutting.pieces(y[train], counts, order[train], f"'{domain}'")
        return train[own[0]], train[own[1]], test

    return Federation(
        name,
        tree.clients(cut, size, seed),
        tree.classes,
        _FEDBN,
        recommended={"model": "small-cnn"},
    )


def _listed(tree: trees.ImageTree, domain: str, part: str, contents: str) -> Tensor:
    path = tree.root / f"{domain}_{part}.txt"
    if not path.is_file():
        raise BadData(f"{path} is not there: 'domainnet/full' needs {contents}")
    return tree.named(domain, reading.listed(path), str(path))
