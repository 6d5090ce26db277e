"""Arrays and .npz files: layouts that work, and every broken one with its message."""

import numpy as np
import pytest
import torch

from fedshift import data
from fedshift.data.in_memory import channels_first, inputs
from fedshift.errors import BadData, FedshiftError, UnknownName

X = np.arange(20 * 6 * 5, dtype=np.uint8).reshape(20, 6, 5)
Y = np.arange(20) % 3


def write(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_splits_stay_as_given_and_single_ones_are_cut():
    fed = data.arrays({"a": {"train": (X, Y), "test": (X[:4], Y[:4])}, "b": (X, Y)})
    assert torch.equal(fed["a"].train.x, torch.from_numpy(X)[:, None])
    assert fed["a"].train.x.dtype == torch.uint8 and fed["a"].train.y.dtype == torch.int64
    assert [len(s) for s in (fed["a"].val, fed["b"].train, fed["b"].val)] == [0, 12, 3]
    assert fed.classes == ("0", "1", "2")


def test_arrays_are_copied():
    x = np.zeros((4, 3), np.float32)
    fed = data.arrays({"a": {"train": (x, np.zeros(4, int))}})
    x[:] = 1
    assert float(fed["a"].train.x.abs().max()) == 0


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.uint8, np.uint16, np.uint64, ">i4"])
def test_whole_labels_of_every_type(kind):
    assert data.arrays({"a": (X, Y.astype(kind))}).classes == ("0", "1", "2")


@pytest.mark.parametrize("kind", [np.float16, np.float64, ">f4"])
def test_float_inputs_keep_their_values(kind):
    fed = data.arrays({"a": {"train": (X.astype(kind), Y)}})
    assert fed["a"].train.x.is_floating_point()
    assert torch.equal(fed["a"].train.x.double()[:, 0], torch.from_numpy(X).double())


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 9), (2, 9)),
        ((2, 9, 8), (2, 1, 9, 8)),
        ((2, 9, 8, 3), (2, 3, 9, 8)),
        ((2, 9, 8, 1), (2, 1, 9, 8)),
        ((2, 3, 9, 8), (2, 3, 9, 8)),
        ((2, 3, 8, 3), (2, 3, 8, 3)),  # ambiguous: channels first, as torch has them
        ((2, 16, 4, 4), (2, 4, 16, 4)),
    ],
)
def test_channels(shape, expected):
    assert tuple(channels_first(torch.zeros(shape), "here").shape) == expected


def test_masks_as_labels():
    masks = (X > 50).astype(np.int64)
    fed = data.arrays({"a": (X, masks)})
    assert fed["a"].train.y.shape == (12, 6, 5)
    assert (fed.task, fed.metric, fed.classes) == ("segmentation", "dice", ("0", "1"))
    assert data.arrays({"a": (X, masks)}, metric="dice-all").metric == "dice-all"
    small = data.arrays({"a": (X, masks.astype(np.uint8))})
    assert small["a"].train.y.dtype == torch.uint8, "labels of pixels are many"
    assert torch.equal(small["a"].train.y.long(), fed["a"].train.y)


def test_masks_must_be_of_the_size_of_their_images():
    with pytest.raises(BadData, match=r"labels of shape \[12, 6, 4\], not \[12, 6, 5\]"):
        data.arrays({"a": (X, np.zeros((20, 6, 4), np.int64))})
    with pytest.raises(UnknownName, match="metric of segmentation 'accuracy'"):
        data.arrays({"a": (X, (X > 50).astype(int))}, metric="accuracy")


@pytest.mark.parametrize("mark", ["/", "__", "."])
def test_npz_layout(tmp_path, mark):
    entries = {
        mark.join(("north_1", "train", "x")): X,
        mark.join(("north_1", "train", "y")): Y,
        mark.join(("north_1", "test", "x")): X[:5],
        mark.join(("north_1", "test", "y")): Y[:5],
        mark.join(("south", "x")): X,
        mark.join(("south", "y")): Y,
        "classes": np.array(["ant", "bee", "cat"]),
    }
    fed = data.npz(write(tmp_path / "d.npz", **entries))
    assert fed.names == ("north_1", "south") and fed.classes == ("ant", "bee", "cat")
    assert len(fed["north_1"].train) == 20 and len(fed["south"].train) == 12
    again = data.load(fed.source)
    assert torch.equal(again["south"].test.x, fed["south"].test.x)


def test_a_client_with_one_split_is_cut(tmp_path):
    fed = data.npz(write(tmp_path / "d.npz", **{"a/train/x": X, "a/train/y": Y}), seed=4)
    assert [len(fed["a"].train), len(fed["a"].val), len(fed["a"].test)] == [12, 3, 5]
    assert fed.source.endswith("d.npz?seed=4")
    assert torch.equal(data.load(fed.source)["a"].train.x, fed["a"].train.x)


BROKEN = {
    "labels are floats": ({"a/x": X, "a/y": Y.astype(float)}, r"astype\('int64'\)"),
    "lengths differ": ({"a/x": X, "a/y": Y[:-1]}, "20 inputs but 19 labels"),
    "no partner": ({"a/train/x": X}, "'a/train/y'"),
    "NaN": ({"a/x": np.full((4, 3), np.nan), "a/y": Y[:4]}, "NaN"),
    "whole inputs": ({"a/x": X.astype(int), "a/y": Y}, "uint8"),
    "words": ({"a/x": X, "a/y": Y.astype(str)}, "give numbers"),
    "objects": ({"a/x": X, "a/y": np.array([1, None] * 10)}, "Python objects"),
    "odd name": ({"images": X, "labels": Y}, "'images'"),
    "odd split": ({"a/dev/x": X, "a/dev/y": Y}, "a/dev/x"),
    "no training": ({"a/val/x": X, "a/val/y": Y, "a/test/x": X, "a/test/y": Y}, "no training"),
    "both layouts": ({"a/x": X, "a/y": Y, "a/test/x": X, "a/test/y": Y}, "choose one"),
    "nothing": ({}, "no arrays"),
    "too many axes": ({"a/x": X[None, None], "a/y": Y[:1]}, "shape"),
    "shapes differ": ({"a/x": X, "a/y": Y, "b/x": X[:, :4], "b/y": Y}, "'b'"),
    "label beyond classes": ({"a/x": X, "a/y": Y, "classes": np.array(["one"])}, "outside 0 to 0"),
    "negative label": ({"a/x": X, "a/y": Y - 1}, "-1"),
    "empty": ({"a/train/x": X[:0], "a/train/y": Y[:0], "a/test/x": X, "a/test/y": Y}, "training"),
    "nobody": ({"a/x": X[:0], "a/y": Y[:0]}, "training"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_npz(tmp_path, case):
    entries, message = BROKEN[case]
    with pytest.raises(BadData, match=message) as error:
        data.npz(write(tmp_path / "d.npz", **entries))
    assert "d.npz" in str(error.value) and "\n" not in str(error.value)


def test_unreadable_npz(tmp_path):
    path = write(tmp_path / "d.npz", **{"a/x": X, "a/y": Y})
    whole = path.read_bytes()
    for content in (b"", b"not a zip", whole[: len(whole) // 2], whole[:100]):
        path.write_bytes(content)
        with pytest.raises(BadData, match=r"d\.npz"):
            data.npz(path)
    flipped = bytearray(whole)
    flipped[200] ^= 0xFF  # inside the first array: its checksum tells
    path.write_bytes(flipped)
    with pytest.raises(BadData, match=r"d\.npz"):
        data.npz(path)
    with (tmp_path / "bare.npz").open("wb") as file:
        np.save(file, X)
    with pytest.raises(BadData, match="bare array"):
        data.npz(tmp_path / "bare.npz")
    with pytest.raises(BadData, match="no file"):
        data.npz(tmp_path / "missing.npz")


@pytest.mark.parametrize(
    "clients",
    [
        {},
        {"a": {"train": (X,)}},
        {"a": {"training": (X, Y)}},
        {"a": {}},
        {"a": (X, np.float32(1))},
        {"a": ([[1, 2], [3]], [0, 1])},
    ],
)
def test_broken_arrays(clients):
    with pytest.raises((BadData, UnknownName)) as error:
        data.arrays(clients)
    assert isinstance(error.value, FedshiftError) and "\n" not in str(error.value)


def test_inputs_alone(tmp_path):
    found = inputs(write(tmp_path / "u.npz", x=X, ignored=Y))
    assert torch.equal(found, torch.from_numpy(X)[:, None]) and found.dtype == torch.uint8
    for arrays, message in (
        ({"y": Y}, "no array 'x'"),
        ({"x": Y}, "have type"),
        ({"x": np.full((2, 3), np.nan)}, "NaN"),
        ({"x": np.zeros(4)}, "shape"),
        ({"x": X[:0]}, "shape"),
    ):
        with pytest.raises(BadData, match=rf"(?s)u\.npz.*{message}|{message}.*u\.npz"):
            inputs(write(tmp_path / "u.npz", **arrays))
