"""PACS: seven kinds of things as art, cartoons, photographs and sketches."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from fedshift import keys
from fedshift.data.augment import Pipeline
from fedshift.data.sets import cutting, pixels, reading, trees
from fedshift.federation import Client, Federation

DOMAINS = {"art": ("art_painting",), "cartoon": (), "photo": (), "sketch": ()}
PUBLISHED = {"art": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
_OFFICIAL = {"art": "art_painting"}  # how the lists call a domain


def federation(
    name: str,
    seed: int = 0,
    size: int = 224,
    portion: float = 1.0,
    whole_test: bool = False,
) -> Federation:
    """Four clients, cut by the official lists `<domain>_{train,crossval}_kfold.txt`.

    The crossval list is for testing; of the train list a tenth is for validation. FRAug trains on a
    tenth of the rest. FedLSI, which scores domains that took no part, has the whole train list for
    training, the crossval list for validation and the whole domain for testing.

    Args:
        name: of the federation.
        seed: what is drawn within the lists, or, where there are none, in their stead.
        size: a side in pixels.
        portion: share of the training images that is used.
        whole_test: test on the whole domain. Only scores of held-out clients are then fair.
    """
    tree = _scan()
    lists = {d: _lists(tree, d, seed) for d in tree.domains}

    def cut(domain: str, y: Tensor, order: Tensor) -> Sequence[Tensor]:
        train, crossval = lists[domain]
        if whole_test:
            return train, crossval, torch.arange(len(y))
        val = len(train) - int(0.9 * len(train))
        sizes = (int(portion * (len(train) - val)), val)
        own = cutting.pieces(y[train], sizes, order[train], f"'{domain}'")
        return train[own[0]], train[own[1]], crossval

    recommended = (
        {"rounds": 20, "epochs": 10, "lr": 0.001, "momentum": 0.9, "weight_decay": 5e-4}
        if whole_test
        else {"rounds": 200, "steps": 5, "lr": 0.01, "momentum": 0.5, "weights": "samples"}
    )
    return Federation(
        name,
        tree.clients(cut, size, seed),
        tree.classes,
        pixels.PHOTOS,
        recommended={"model": "small-cnn", "batch": 32, "select": "best-val"} | recommended,
    )


def fedbr(name: str, seed: int = 0) -> Federation:
    """FedBR's eight clients: each domain's dogs to guitars, and its horses to persons; 32 pixels.

    A fifth of a domain's images is for testing and the same for both of its clients; of the rest a
    fifth is for validation.
    """
    tree = _scan()
    made = []
    for domain, client in zip(tree.domains, tree.clients(_four_fifths, 32, seed)):
        for part, few in (("a", range(4)), ("b", range(4, 7))):
            train, val = (
                s.take(torch.isin(s.y, torch.tensor(few))) for s in (client.train, client.val)
            )
            made.append(Client(f"{domain}-{part}", train, val, client.test))
    return Federation(
        name,
        tuple(made),
        tree.classes,
        Pipeline(pixels.MEAN, pixels.STD),
        recommended={
            "model": "small-cnn", "rounds": 400, "steps": 50, "batch": 32, "lr": 0.01,
            "eval_every": 2, "select": "top5-test",
        },
    )  # fmt: skip


def _four_fifths(domain: str, y: Tensor, order: Tensor) -> Sequence[Tensor]:
    pool = int(0.8 * len(y))
    train = int(0.8 * pool)
    return cutting.pieces(y, (train, pool - train, len(y) - pool), order, f"'{domain}'")


def _scan() -> trees.ImageTree:
    return trees.scan(
        "pacs", "art_painting/, cartoon/, photo/ and sketch/, each with seven class folders, and "
        "the official lists such as photo_train_kfold.txt and photo_crossval_kfold.txt",
        DOMAINS, classes=CLASSES, published=PUBLISHED,
    )  # fmt: skip


def _lists(tree: trees.ImageTree, domain: str, seed: int) -> tuple[Tensor, Tensor]:
    """The positions of the official training and crossval images; drawn where there is no list."""
    short = _OFFICIAL.get(domain, domain)
    found = []
    for part in ("train", "crossval"):
        file = f"{short}_{part}_kfold.txt"
        paths = [*tree.root.glob(file), *sorted(tree.root.glob(f"*/{file}"))]
        if paths:
            found.append(tree.named(domain, reading.listed(paths[0]), str(paths[0])))
    if len(found) == 2:
        return found[0], found[1]
    warnings.warn(
        f"{tree.root} has no {short}_train_kfold.txt and {short}_crossval_kfold.txt: the split of "
        f"'{domain}' is drawn here, nine to one, and is not the official one",
        stacklevel=3,
    )
    y, order = tree.labels(domain), tree.order(domain, keys.fold(seed, "lists"))
    train = int(0.9 * len(y))
    first, second = cutting.pieces(y, (train, len(y) - train), order, f"'{domain}'")
    return first, second
