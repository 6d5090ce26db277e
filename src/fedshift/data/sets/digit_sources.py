"""MNIST, MNIST-M, SVHN, USPS and SynthDigits as their publishers cut them: training and test.

Each is read from its folder under $FEDSHIFT_DATA, from the publisher's files or from .npz files of
`x_train`, `y_train`, `x_test`, `y_test`.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedshift.data import images
from fedshift.data.sets import mnist_m, place, reading
from fedshift.data.sets.reading import Splits
from fedshift.errors import BadData
from fedshift.federation import Samples

_OR_NPZ = ", or an .npz file with x_train, y_train, x_test, y_test"


@dataclasses.dataclass(frozen=True)
class Source:
    """A published set: what lies in its folder, how many images it has, how it is read."""

    contents: str
    published: dict[str, int]
    read: Callable[[Path], Splits]


def load(name: str) -> Splits:
    """A set of digits, or an error that says what to put where; a warning where it is not whole.

    MNIST-M is made from MNIST where only the photographs that it takes are there.
    """
    if name == "mnist-m" and place.find(name) is None and place.find("bsds500"):
        warnings.warn(
            "'mnist-m' is made here from MNIST and BSDS500: its images are not the published ones",
            stacklevel=2,
        )
        return mnist_m.made(load("mnist"), place.need("bsds500", "images/"))
    source = SOURCES[name]
    folder = place.need(name, source.contents + _OR_NPZ)
    found = reading.kept(folder, lambda: reading.npz(folder) or source.read(folder))
    if not found:
        raise place.nothing(name, folder, source.contents + _OR_NPZ)
    counts = {split: len(s) for split, s in found.items()}
    place.compare_counts(f"'{name}'", counts, source.published)
    return found


def present(name: str) -> bool:
    """Whether a set can be had: it has a folder, or what it is made from has one."""
    made = name == "mnist-m" and place.find("bsds500") and place.find("mnist")
    return bool(made or place.find(name))


def _mnist(folder: Path) -> Splits:
    names = {"train": "train", "test": "t10k"}
    return reading.idx_pairs(
        (folder, folder / "raw", folder / "MNIST" / "raw"),
        {s: (f"{n}-images-idx3-ubyte", f"{n}-labels-idx1-ubyte") for s, n in names.items()},
    )


def _mnist_m(folder: Path) -> Splits:
    """Single pictures, and a text file of `picture label` for each split."""
    found = {}
    for split in ("train", "test"):
        pictures, labels = folder / f"mnist_m_{split}", folder / f"mnist_m_{split}_labels.txt"
        if not pictures.is_dir():
            continue
        lines = [line.split() for line in reading.text(labels).splitlines() if line.strip()]
        if any(len(line) != 2 for line in lines):
            raise BadData(f"{labels} is no list of 'picture label': download it again")
        rows = images.decode_all([pictures / name for name, _ in lines], (32, 32), grey=False)
        y = np.array([int(label) for _, label in lines])
        found[split] = reading.samples(np.stack(list(rows)), y, pictures)
    return found


def _svhn(folder: Path) -> Splits:
    return _matlab(folder, "{}_32x32.mat")


def _synth_digits(folder: Path) -> Splits:
    return _matlab(folder, "synth_{}_32x32.mat")


def _matlab(folder: Path, name: str) -> Splits:
    paths = {split: folder / name.format(split) for split in ("train", "test")}
    return {s: reading.cropped_digits(path) for s, path in paths.items() if path.is_file()}


def _usps(folder: Path) -> Splits:
    found = {}
    for split, name in (("train", "usps.bz2"), ("test", "usps.t.bz2")):
        if (folder / name).is_file():
            x, y = reading.libsvm(folder / name, 16)
            found[split] = _usps_samples(x, y - 1, folder / name)  # labels there count from 1
    if not found and (folder / "usps.h5").is_file():
        pairs = reading.h5(folder / "usps.h5")
        return {s: _usps_samples(x, y, folder / "usps.h5") for s, (x, y) in pairs.items()}
    return found


def _usps_samples(x: np.ndarray, y: np.ndarray, path: Path) -> Samples:
    """Grey values are from -1 to 1 in one publication, from 0 to 1 in another."""
    unit = (x + 1) / 2 if x.min() < 0 else x
    return reading.samples((unit * 255).astype(np.uint8).reshape(-1, 16, 16), y, path)


SOURCES: dict[str, Source] = {
    "mnist": Source(
        "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
        "t10k-labels-idx1-ubyte (each may end in .gz)",
        {"train": 60_000, "test": 10_000},
        _mnist,
    ),
    "mnist-m": Source(
        "mnist_m_train/, mnist_m_train_labels.txt, mnist_m_test/ and mnist_m_test_labels.txt "
        "(or the photographs of BSDS500 in bsds500/images/, from which it is made)",
        {"train": 59_001, "test": 9_001},
        _mnist_m,
    ),
    "svhn": Source("train_32x32.mat and test_32x32.mat", {"train": 73_257, "test": 26_032}, _svhn),
    "usps": Source(
        "usps.bz2 and usps.t.bz2 (libsvm's), or usps.h5", {"train": 7_291, "test": 2_007}, _usps
    ),
    "synth-digits": Source(
        "synth_train_32x32.mat and synth_test_32x32.mat",
        {"train": 479_400, "test": 9_553},
        _synth_digits,
    ),
}
