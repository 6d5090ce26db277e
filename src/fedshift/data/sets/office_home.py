"""Office-Home: 65 kinds of things from offices and homes as art, clip art, products and photos."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedshift.data.sets import cutting, pixels, trees
from fedshift.data.sets.digit_domains import tenths
from fedshift.errors import BadData
from fedshift.federation import Federation

DOMAINS = {"art": (), "clipart": (), "product": (), "real-world": ("Real",)}
PUBLISHED = {"art": 2427, "clipart": 4365, "product": 4439, "real-world": 4357}
_CLASSES = 65


def federation(
    name: str,
    seed: int = 0,
    size: int = 224,
    portion: float = 1.0,
    whole_test: bool = False,
) -> Federation:
    """Four clients; a tenth of the images is for testing, a tenth of the rest for validation.

    FRAug trains on a tenth of what is left. FedLSI, which scores domains that took no part, trains
    on nine tenths, validates on one, and tests on the whole domain.

    Args:
        name: of the federation.
        seed: what the splits follow from.
        size: a side in pixels.
        portion: share of the training images that is used.
        whole_test: test on the whole domain. Only scores of held-out clients are then fair.
    """
    tree = trees.scan(
        "office-home", "Art/, Clipart/, Product/ and Real World/, each with 65 class folders",
        DOMAINS, published=PUBLISHED, others=("OfficeHomeDataset_10072016",),
    )  # fmt: skip
    if len(tree.classes) != _CLASSES:
        raise BadData(f"{tree.root} has {len(tree.classes)} classes, not {_CLASSES}: complete it")

    def cut(domain: str, y: Tensor, order: Tensor) -> Sequence[Tensor]:
        n, where = len(y), f"'{domain}'"
        if whole_test:
            val = n - int(0.9 * n)
            held, train = cutting.pieces(y, (val, n - val), order, where)
            return train, held, torch.arange(n)
        test, held, train = cutting.pieces(y, tenths(n, portion), order, where)
        return train, held, test

    recommended = (
        {
            "rounds": 20, "epochs": 10, "batch": 32, "lr": 0.001, "momentum": 0.9,
            "weight_decay": 5e-4,
        }
        if whole_test
        else {
            "rounds": 200, "steps": 10, "batch": 16, "lr": 0.01, "momentum": 0.5,
            "weights": "samples", "reset_optimizer": False,
        }
    )  # fmt: skip
    return Federation(
        name,
        tree.clients(cut, size, seed),
        tree.classes,
        pixels.PHOTOS,
        recommended={"model": "small-cnn", "select": "best-val"} | recommended,
    )
