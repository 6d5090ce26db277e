"""A server's rows belong to names."""

from __future__ import annotations

import torch

from fedshift.parts import rows


def test_a_row_does_not_depend_on_the_order_of_clients():
    assert rows.assign(["x", "b", "a"]) == rows.assign(["a", "x", "b"])
    # a checkpoint may bring numbers back in another order
    turned = dict(reversed({"rounds": 1, **rows.assign(["x", "b", "a"])}.items()))
    assert list(rows.rows_of(turned).items()) == [("a", 0), ("b", 1), ("x", 2)]


def test_taking_and_putting_back():
    whole = {"w": torch.arange(8.0).reshape(4, 2)}
    before = whole["w"].clone()
    some = rows.take(whole, [3, 1])
    assert some["w"].tolist() == [[6, 7], [2, 3]]
    new = rows.put(whole, [3, 1], {"w": -some["w"]})
    assert new["w"].tolist() == [[0, 1], [-2, -3], [4, 5], [-6, -7]]
    assert torch.equal(whole["w"], before)


def test_keys_are_told_by_name_and_purpose():
    a = rows.keys_of(5, "train", ["x", "b"])
    assert torch.equal(rows.keys_of(5, "train", ["b", "c", "x"])[[2, 0]], a)
    apart = {
        int(k)
        for key, purpose in ((5, "train"), (5, "initial"), (6, "train"))
        for k in rows.keys_of(key, purpose, ["x", "b"])
    }
    assert len(apart) == 6
