"""MNIST and EMNIST's letters dealt to twenty clients, also by FedGenP's label skew."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fedshift import keys
from fedshift.data.augment import Pipeline
from fedshift.data.partition import evenly
from fedshift.data.sets import dealt, digit_sources, fedgen_deal, place, reading
from fedshift.data.sets.capped import capped_dirichlet
from fedshift.data.sets.reading import Splits
from fedshift.federation import Federation, Samples

CLIENTS = 20
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
_EMNIST = {
    s: (f"emnist-letters-{s}-images-idx3-ubyte", f"emnist-letters-{s}-labels-idx1-ubyte")
    for s in ("train", "test")
}


def letters() -> Splits:
    """EMNIST's letters, upright, labels from 0: published are 124,800 and 20,800."""
    contents = f"{' and '.join(_EMNIST['train'])}, and the same of test (each may end in .gz)"
    folder = place.need("emnist", contents)
    found = reading.kept(folder, lambda: reading.npz(folder) or _published(folder))
    if not found:
        raise place.nothing("emnist", folder, contents)
    counts = {s: len(part) for s, part in found.items()}
    place.compare_counts("'emnist'", counts, {"train": 124_800, "test": 20_800})
    return found


def _published(folder: Path) -> Splits:
    """The publisher's files lie on their side, and count labels from 1."""
    places = (folder, folder / "gzip", folder / "raw", folder / "EMNIST" / "raw")
    found = reading.idx_pairs(places, _EMNIST)
    return {s: Samples(p.x.transpose(2, 3).contiguous(), p.y - 1) for s, p in found.items()}


def federation(
    name: str, seed: int = 0, of: str = "mnist", percent: int = 100, alpha: float = 0.0
) -> Federation:
    """Twenty clients, 28 x 28 pixels, normalised by 0.5.

    With label skew it is FedGenP's federation: a share of the data is dealt by Dirichlet draws, and
    a client is tested on images of the classes that it owns. FedGenP's code keeps of each class
    min(s N / 20, s n) images, N being the size of the set and n that of the class: on MNIST this is
    half of what the percentage says. MNIST is dealt as by that code with its own seed, from which
    `seed` counts on.

    Args:
        name: of the federation.
        seed: who gets what.
        of: "mnist" or "emnist".
        percent: of the training images (s).
        alpha: concentration of the label skew, 0 for none.
    """
    pool = digit_sources.load("mnist") if of == "mnist" else letters()
    y = pool["train"].y
    key = keys.fold(seed, of, percent, str(alpha))
    if alpha:
        if of == "mnist":
            share, draw = percent / 100, fedgen_deal.SEED + seed
            parts = fedgen_deal.fedgen_deal(y, CLIENTS, alpha, share=share, minimum=10, seed=draw)
        else:
            most = percent / 100 * len(y) / CLIENTS
            chosen = kept(y, percent, key)
            dealt_ = capped_dirichlet(y[chosen], CLIENTS, alpha, most=most, minimum=260, seed=key)
            parts = [chosen[part] for part in dealt_]
        tests = dealt.owned_classes(pool["test"], [y[part] for part in parts], key)
    else:
        parts = evenly(y, CLIENTS, seed=key)
        tests = dealt.shared_test(pool["test"], CLIENTS, key)
    return Federation(
        name,
        dealt.clients(pool, parts, tests, val=0.0, seed=key),
        tuple("0123456789") if of == "mnist" else LETTERS,
        Pipeline(mean=(0.5,), std=(0.5,)),
        recommended={
            "model": "small-cnn", "rounds": 300 if of == "mnist" else 100, "steps": 20, "lr": 0.01,
            "schedule": "exponential", "weights": "samples",
            "participation": 10 if (of, percent) == ("mnist", 10) else 1.0,
        },
    )  # fmt: skip


def kept(y: Tensor, percent: int, seed: int) -> Tensor:
    """The positions of the images that FedGenP's code keeps of each class.

    >>> y = torch.arange(60_000) % 10
    >>> [len(kept(y, percent, 0)) for percent in (100, 10, 5)]
    [60000, 3000, 1500]
    """
    if percent == 100:
        return torch.arange(len(y))
    share = percent / 100
    order = keys.permutation(keys.as_tensor(keys.fold(seed, "kept")), len(y))
    members = [order[y[order] == c] for c in range(int(y.max()) + 1)]
    most = share * len(y) / CLIENTS
    return torch.cat([m[: int(min(most, share * len(m)) + 1e-6)] for m in members]).sort().values
