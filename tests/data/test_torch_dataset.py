"""Torch datasets: kinds of items, splits, mapping, and what is refused."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, TensorDataset

from fedshift import data
from fedshift.data import cache
from fedshift.errors import BadData, UnknownName

X = (torch.arange(20 * 3 * 4 * 5) % 256).to(torch.uint8).reshape(20, 3, 4, 5)
Y = torch.arange(20) % 2


class Items(list):
    """A list is a map-style dataset."""


def items(f):
    return Items((f(x), int(y)) for x, y in zip(X, Y))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path))


@pytest.mark.parametrize(
    "kind",
    [
        lambda x: x,
        lambda x: x.float() / 255,  # what ToTensor makes
        lambda x: x.numpy(),
        lambda x: Image.fromarray(x.permute(1, 2, 0).numpy()),
    ],
)
def test_every_kind_of_item_becomes_the_same_bytes(kind):
    fed = data.dataset({"a": {"train": items(kind)}})
    assert fed["a"].train.x.dtype == torch.uint8
    assert torch.equal(fed["a"].train.x, X) and torch.equal(fed["a"].train.y, Y)


def test_floats_that_are_no_bytes_stay_floats():
    x = X.double() / 200 - 0.3
    assert torch.equal(data.dataset({"a": {"train": TensorDataset(x, Y)}})["a"].train.x, x)
    x = X.double() / 300
    assert torch.equal(data.dataset({"a": {"train": TensorDataset(x, Y)}})["a"].train.x, x)


def test_whole_datasets_are_split_alike():
    fed = data.dataset({"a": TensorDataset(X, Y), "b": {"train": TensorDataset(X, Y)}})
    a = fed["a"]
    assert [len(s) for s in (a.train, a.val, a.test)] == [12, 3, 5]
    assert torch.bincount(a.train.y).tolist() == [6, 6]
    assert len(fed["b"].val) == 0


@pytest.mark.parametrize(
    "kind",
    [lambda x: x, lambda x: x.float() / 7, lambda x: x[0], lambda x: x.permute(1, 2, 0).numpy()],
)
def test_mapped_equals_in_memory(kind):
    inside = data.dataset({"a": items(kind)})
    mapped = data.dataset({"a": items(kind)}, memory=10)
    for part in ("train", "val", "test"):
        a, b = getattr(inside["a"], part), getattr(mapped["a"], part)
        assert torch.equal(a.x, b.x) and torch.equal(a.y, b.y)
    assert list(cache.directory().iterdir()) == []


def test_sizes_and_grey():
    pictures = Items((Image.new("L", (4 + i, 5), i), 0) for i in range(5))
    with pytest.raises(BadData, match="item 1 of client 'a'"):
        data.dataset({"a": pictures})
    x = data.dataset({"a": {"train": pictures}}, size=6)["a"].train.x
    assert x.shape == (5, 1, 6, 6) and x[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]


def test_masks():
    masks = TensorDataset(X, torch.ones(20, 4, 5, dtype=torch.int64))
    fed = data.dataset({"a": masks}, classes=("sky", "ground"), task="segmentation")
    assert fed["a"].train.y.shape == (12, 4, 5)


class Endless(IterableDataset):
    def __iter__(self):
        yield from ()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Endless(), "Endless"),
        (TensorDataset(X[:0], Y[:0]), "no samples"),
        (TensorDataset(X), "pairs"),
        (TensorDataset(X, Y.float()), "float32"),
        (TensorDataset(X.int(), Y), "int32"),
        (Items([(np.zeros(3, np.float32), 0), (np.zeros(4, np.float32), 0)]), "item 1"),
        (Items([{"x": 1, "y": 2}]), "dict"),
        (Items([(Image.new("I", (3, 3)), 0)]), "8 bits"),
        ({"train": TensorDataset(X * torch.nan, Y)}, "NaN"),
        ({"test": TensorDataset(X, Y)}, "no training"),
    ],
)
def test_broken_datasets(source, message):
    with pytest.raises(BadData, match=message) as error:
        data.dataset({"a": source})
    assert "\n" not in str(error.value)


def test_unknown_split():
    with pytest.raises(UnknownName, match="train"):
        data.dataset({"a": {"tran": TensorDataset(X, Y)}})
