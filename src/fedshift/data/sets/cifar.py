"""CIFAR-10 and CIFAR-100 dealt to clients, as FedFA and FedBR do it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedshift import keys
from fedshift.data.augment import Crop, Flip, Pipeline
from fedshift.data.partition import dirichlet, evenly
from fedshift.data.sets import dealt, place, reading
from fedshift.data.sets.capped import capped_dirichlet
from fedshift.data.sets.reading import Splits
from fedshift.data.sets.rotated import ANGLES, turned
from fedshift.errors import BadData
from fedshift.federation import Federation, Samples

FEDFA = Pipeline((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), augment=(Crop(4), Flip(0.5)))
FEDBR_100 = Pipeline(
    (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), augment=(Crop(4), Flip(0.5))
)
CLASSES_10 = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
_FILES = {
    10: {"train": [f"data_batch_{k}.bin" for k in range(1, 6)], "test": ["test_batch.bin"]},
    100: {"train": ["train.bin"], "test": ["test.bin"]},
}


def load(classes: int) -> Splits:
    """The set from its binary version; the version for Python is a pickle and is refused."""
    name = f"cifar-{classes}"
    archive = f"{name}-binary.tar.gz"
    contents = (
        f"{', '.join(_FILES[classes]['train'] + _FILES[classes]['test'])} (unpacked from {archive})"
    )
    others = ("cifar-10-batches-bin",) if classes == 10 else ("cifar-100-binary",)
    pickled = f"{name}-batches-py" if classes == 10 else f"{name}-python"
    folder = place.find(name, *others) or place.find(pickled) or place.need(name, contents)
    found = reading.kept(folder, lambda: reading.npz(folder) or _binary(folder, classes))
    if not found:
        stems = {Path(f).stem for f in _FILES[classes]["train"]}
        if any(p.name in stems for p in folder.rglob("*")):
            raise BadData(
                f"{folder} holds the version of {name} for Python, a pickle, which could run "
                f"anything when it is read: take the binary version, {archive}"
            )
        raise place.nothing(name, folder, contents)
    counts = {s: len(part) for s, part in found.items()}
    place.compare_counts(f"'{name}'", counts, {"train": 50_000, "test": 10_000})
    return found


def _binary(folder: Path, classes: int) -> Splits:
    """CIFAR-100's records have two labels: the second is the fine one."""
    found = {}
    for split, names in _FILES[classes].items():
        paths = [next(iter(sorted(folder.rglob(name))), folder / name) for name in names]
        if not any(path.is_file() for path in paths):
            continue
        tables = [reading.records(path, 1 if classes == 10 else 2) for path in paths]
        x, y = (np.concatenate(part) for part in zip(*tables))
        found[split] = reading.samples(x, y[:, -1], folder)
    return found


def fedfa(name: str, seed: int = 0, alpha: float = 0.6) -> Federation:
    """CIFAR-10 for a hundred clients of ten images and more, with label skew Dirichlet(alpha)."""
    pool = load(10)
    y, n = pool["train"].y, 100
    key = keys.fold(seed, "cifar-10", "fedfa")
    parts = capped_dirichlet(y, n, alpha, most=len(y) / n, minimum=10, seed=key)
    tests = dealt.shared_test(pool["test"], n, key)
    return Federation(
        name,
        dealt.clients(pool, parts, tests, val=0.0, seed=key),
        CLASSES_10,
        FEDFA,
        recommended={
            "model": "small-cnn", "rounds": 100, "epochs": 10, "batch": 10, "lr": 0.1,
            "participation": 0.1,
        },
    )  # fmt: skip


def fedbr(
    name: str,
    seed: int = 0,
    classes: int = 10,
    clients: int = 10,
    alpha: float = 0.1,
    rotated: bool = True,
) -> Federation:
    """Equally many images a client, few classes each, a fifth of them for validation.

    Rotated, each client draws how often it sees which of ten angles, and turns each training image
    by one of them; the test set is seen whole at each angle, an angle per client or group of
    clients. Otherwise the test set is dealt evenly.

    Args:
        name: of the federation.
        seed: who gets what, and which angle.
        classes: 10 or 100.
        clients: how many.
        alpha: concentration of the label skew: times the class's share of what is left for
            CIFAR-10, for each class for CIFAR-100; 0 for none.
        rotated: whether images are turned.
    """
    pool = load(classes)
    y = pool["train"].y
    key = keys.fold(seed, f"cifar-{classes}", "fedbr")
    concentration = "prior" if classes == 10 else "even"
    parts = (
        dirichlet(y, clients, alpha, seed=key, concentration=concentration)
        if alpha
        else evenly(y, clients, seed=key)
    )
    if rotated:
        pool = pool | {"train": at_angles(pool["train"], parts, key)}
        tests = at_each_angle(pool["test"], clients, key)
    else:
        tests = dealt.shared_test(pool["test"], clients, key)
    names = CLASSES_10 if classes == 10 else tuple(map(str, range(100)))
    return Federation(
        name,
        dealt.clients(pool, parts, tests, val=0.2, seed=key),
        names,
        Pipeline() if classes == 10 else FEDBR_100,
        recommended={
            "model": "small-cnn", "rounds": 1000 if classes == 10 else 800, "steps": 50,
            "batch": 32, "lr": 0.01, "eval_every": 2, "select": "top5-test",
            "participation": 1.0 if clients == 10 else 10,
            "momentum": 0.0 if classes == 10 else 0.9,
        },
    )  # fmt: skip


def at_angles(train: Samples, parts: list[Tensor], seed: int) -> Samples:
    """Each client's images turned by angles of which it has its own mixture, Dirichlet(0.1)."""
    x = train.x.clone()
    for k, part in enumerate(parts):
        key = keys.as_tensor(keys.fold(seed, "angles", k))
        alphas = torch.full((len(ANGLES),), 0.1, dtype=torch.float64)
        ends = keys.dirichlet(keys.fold_in(key, "mixture"), alphas).cumsum(0)
        draws = keys.uniform(keys.fold_in(key, "draws"), (len(part),), torch.float64)
        which = torch.searchsorted(ends, draws * ends[-1], right=True).clamp(max=len(ANGLES) - 1)
        for position, degrees in enumerate(ANGLES):
            some = part[which == position]
            x[some] = turned(train.take(some), degrees).x
    return Samples(x, train.y)


def at_each_angle(test: Samples, clients: int, seed: int) -> list[Samples]:
    """The whole test set at every angle, shared out where an angle has several clients."""
    group = clients // len(ANGLES)
    slices = dealt.shared_test(test, group, seed) if group > 1 else [test]
    return [turned(slices[k // len(ANGLES)], ANGLES[k % len(ANGLES)]) for k in range(clients)]
