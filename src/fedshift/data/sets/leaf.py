"""FEMNIST and CelebA as LEAF prepares them: JSON files that say whose each sample is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedshift import keys
from fedshift.data.augment import Pipeline
from fedshift.data.image_folder import Reader
from fedshift.data.masks import Entry
from fedshift.data.sets import cutting, once, pixels, place, reading
from fedshift.errors import BadData
from fedshift.federation import Client, Federation, Samples
from fedshift.tree import Tree

_CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PARTS = "data/train/*.json and data/test/*.json, as LEAF's preprocess.sh writes them"
_WRITERS = 3400
_CELEBRITIES, _TOGETHER, _SIDE = 250, 10, 84


def femnist(name: str, seed: int = 0) -> Federation:
    """A client for each writer, 28 x 28 pixels, 62 characters, cut by LEAF."""
    folder = place.need("femnist", _PARTS)
    paths = _parts(folder, "femnist")

    def read() -> Tree:
        tree: Tree = {}
        for split, files in paths.items():
            for path in files:
                for user, data in _users(path).items():
                    with reading.explained(path):
                        x = np.array(data["x"], dtype=np.float64).reshape(-1, 28, 28) * 255
                        y = np.array(data["y"])
                        own = reading.samples(x.round().astype(np.uint8), y, path)
                    tree[f"{split}/{user}/x"], tree[f"{split}/{user}/y"] = own.x, own.y
        return tree

    tree = once.decoded("femnist", [p for files in paths.values() for p in files], read)
    users = [key.split("/")[1] for key in tree if key.startswith("train/") and key.endswith("/x")]
    nothing = Samples(torch.empty((0, 1, 28, 28), dtype=torch.uint8), torch.empty(0).long())
    clients = []
    for user in sorted(users):
        own = [
            Samples(tree[f"{split}/{user}/x"], tree[f"{split}/{user}/y"])
            if f"{split}/{user}/x" in tree else nothing
            for split in ("train", "test")
        ]  # fmt: skip
        clients.append(Client(user, own[0], nothing, own[1]))
    place.compare_counts("'femnist'", {"writers": len(clients)}, {"writers": _WRITERS})
    return Federation(
        name,
        tuple(clients),
        tuple(_CHARACTERS),
        recommended={
            "model": "small-cnn", "rounds": 1000, "epochs": 5, "lr": 0.05, "batch": 32,
            "participation": min(50, len(clients)) if len(clients) > 1 else 1.0,
        },
    )  # fmt: skip


def celeba(name: str, seed: int = 0, raw: bool = False) -> Federation:
    """FedGenP's 25 clients of ten celebrities each: who smiles? 84 x 84 pixels.

    Args:
        name: of the federation.
        seed: which 250 celebrities, and who is with whom.
        raw: let the network see 0 to 255, as FedGenP's code does.
    """
    contents = f"{_PARTS}, and the pictures data/raw/img_align_celeba/*.jpg"
    folder = place.need("celeba", contents)
    found: dict[str, dict[str, list[Entry]]] = {}
    pictures = _pictures(folder, contents)
    for split, files in _parts(folder, "celeba").items():
        for path in files:
            for user, data in _users(path).items():
                with reading.explained(path):
                    pairs = list(zip(data["x"], map(str, map(int, data["y"])), strict=True))
                    entries = [Entry(pictures / str(x), y) for x, y in pairs]
                found.setdefault(user, {})[split] = entries
    users = sorted(user for user, splits in found.items() if {"train", "test"} <= set(splits))
    if len(users) < _CELEBRITIES:
        raise BadData(
            f"{folder} has {len(users)} celebrities with training and test pictures, and "
            f"{_CELEBRITIES} are taken: run LEAF's preprocess.sh with --sf 1.0"
        )
    order = torch.argsort(cutting.drawn(keys.fold(seed, "celeba"), len(users)), stable=True)
    chosen = [users[k] for k in order[:_CELEBRITIES].tolist()]
    read = Reader(("0", "1"), (_SIDE, _SIDE), grey=False, mapped=True).read
    clients = []
    for k in range(_CELEBRITIES // _TOGETHER):
        group = chosen[k * _TOGETHER : (k + 1) * _TOGETHER]
        train, test = (
            read([entry for user in group for entry in found[user][split]])
            for split in ("train", "test")
        )
        clients.append(Client(f"client-{k:02d}", train, train.take(torch.empty(0).long()), test))
    return Federation(
        name,
        tuple(clients),
        ("serious", "smiling"),
        pixels.BYTES if raw else Pipeline(),
        recommended={
            "model": "small-cnn", "rounds": 100, "steps": 20, "lr": 0.01,
            "schedule": "exponential", "weights": "samples",
        },
    )  # fmt: skip


def _parts(folder: Path, name: str) -> dict[str, list[Path]]:
    """LEAF's files of each split, under data/ or directly in the folder."""
    for base in (folder / "data", folder):
        found = {s: sorted((base / s).glob("*.json")) for s in ("train", "test")}
        if all(found.values()):
            return found
    raise place.nothing(name, folder, _PARTS)


def _pictures(folder: Path, contents: str) -> Path:
    for base in (folder / "data" / "raw", folder / "data", folder):
        if (base / "img_align_celeba").is_dir():
            return base / "img_align_celeba"
    raise BadData(f"{folder} holds no img_align_celeba/: put there {contents}")


def _users(path: Path) -> dict[str, dict[str, list[float]]]:
    """What a file of LEAF holds, by user."""
    with reading.explained(path):
        table = reading.json_of(path)
        return {str(user): table["user_data"][user] for user in table["users"]}
