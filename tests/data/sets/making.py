"""Small copies of the publishers' layouts, written by tests, and loading with what it warns of."""

import bz2
import gzip
import struct
import warnings

import numpy as np
from PIL import Image

from fedshift import data
from fedshift.protocol import Protocol


def loaded(name):
    """A federation and the warnings of its loading; its recommendations must be a protocol."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        federation = data.load(name)
    fields = dict(federation.recommended)
    fields.pop("model", None)
    Protocol(**fields)
    assert federation.name == name.partition("?")[0] and federation.source == name
    return federation, [str(w.message) for w in caught]


def sizes(federation):
    return {c.name: (len(c.train), len(c.val), len(c.test)) for c in federation.clients}


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(path, array):
    """An idx file, packed where the name ends in .gz."""
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    content = head + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)


def mnist(folder, train=1000, test=300, side=28):
    for short, n in (("train", train), ("t10k", test)):
        idx(folder / f"{short}-images-idx3-ubyte.gz", noise(n, side, side, seed=n))
        idx(folder / f"{short}-labels-idx1-ubyte.gz", np.arange(n) % 10)


def mat(path, n):
    """A file of cropped digits, 10 standing for 0."""
    from scipy.io import savemat

    path.parent.mkdir(parents=True, exist_ok=True)
    y = np.arange(n) % 10
    savemat(path, {"X": noise(32, 32, 3, n), "y": np.where(y == 0, 10, y)[:, None]})


def usps(folder, train=1000, test=300):
    folder.mkdir()
    for name, n in (("usps.bz2", train), ("usps.t.bz2", test)):
        lines = []
        for k in range(n):
            values = " ".join(f"{i + 1}:{(i + k) % 3 - 1}" for i in range(256))
            lines.append(f"{k % 10 + 1} {values}")
        (folder / name).write_bytes(bz2.compress("\n".join(lines).encode()))


def mnist_m(folder, train=1000, test=300):
    for split, n in (("train", train), ("test", test)):
        (folder / f"mnist_m_{split}").mkdir(parents=True)
        pixels = noise(n, 32, 32, 3, seed=n)
        for k in range(n):
            picture(folder / f"mnist_m_{split}" / f"{k:08d}.png", pixels[k])
        lines = (f"{k:08d}.png {k % 10}" for k in range(n))
        (folder / f"mnist_m_{split}_labels.txt").write_text("\n".join(lines))


def picture(path, pixels=None, colour=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = np.full((8, 8, 3), colour, np.uint8) if pixels is None else pixels
    Image.fromarray(whole).save(path)


def tree(root, domains, classes, each=10, suffix=".png"):
    """`each` pictures for every class of every domain, in the class's own colour."""
    for domain in domains:
        for k, c in enumerate(classes):
            for i in range(each):
                picture(root / domain / c / f"{c}_{i:03d}{suffix}", colour=k)
