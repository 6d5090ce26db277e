"""Office-Caltech10: ten kinds of office things in four collections of photographs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedshift.data.augment import Flip, Pipeline, Rotate
from fedshift.data.sets import cutting, trees
from fedshift.federation import Federation

DOMAINS = {"amazon": (), "caltech10": ("caltech",), "dslr": (), "webcam": ()}
PUBLISHED = {"amazon": 958, "caltech10": 1123, "dslr": 157, "webcam": 295}
CLASSES = (
    "backpack", "bike", "calculator", "headphones", "keyboard",
    "laptop", "monitor", "mouse", "mug", "projector",
)  # fmt: skip
SPELT = {"laptop_computer": "laptop", "touring_bike": "bike", "computer_keyboard": "keyboard"}


def federation(name: str, seed: int = 0, size: int = 256, augment: bool = True) -> Federation:
    """Four clients with as many images as with FedBN and FedFA, 75 / 50 / 32 to 538 / 360 / 225.

    A file `split.csv` in the set's folder says which image is for what; without one, a fifth is for
    testing, and of the rest three fifths for training, class by class as the seed draws.

    Args:
        name: of the federation.
        seed: what the splits follow from, where there is no file.
        size: a side in pixels.
        augment: flip and rotate as FedBN does; FedFA's code does neither.
    """
    tree = trees.scan(
        "office-caltech10", "amazon/, caltech10/, dslr/ and webcam/, each with ten class folders",
        DOMAINS, classes=CLASSES, spelt=SPELT, published=PUBLISHED, others=("office-caltech-10",),
    )  # fmt: skip
    listed = trees.from_csv(tree)

    def cut(domain: str, y: Tensor, order: Tensor) -> Sequence[Tensor]:
        if listed:
            return listed[domain]
        return cutting.pieces(y, fifths(len(y)), order, f"'{domain}'")

    return Federation(
        name,
        tree.clients(cut, size, seed),
        tree.classes,
        Pipeline(augment=(Flip(0.5), Rotate(30.0)) if augment else ()),
        recommended={"model": "small-cnn", "rounds": 400, "batch": 32, "lr": 0.01},
    )


def fifths(n: int) -> tuple[int, int, int]:
    """Sizes of training, validation and test for a domain of n images.

    >>> [fifths(n) for n in PUBLISHED.values()]
    [(459, 307, 192), (538, 360, 225), (75, 50, 32), (141, 95, 59)]
    """
    pool = int(0.8 * n)
    train = int(0.6 * pool)
    return train, pool - train, n - pool
