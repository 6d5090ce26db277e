"""Rows and sentences say no more and no less than the items."""

from __future__ import annotations

import pytest

from fedshift import methods
from fedshift.wire import observe, words
from tests.methods.test_battery import ALL
from tests.toys import ToyNet, federation

TOY = federation()


def seen(name, settings=None):
    return observe(methods.make(name, settings), TOY, ToyNet)


@pytest.mark.parametrize("name", ALL)
def test_rows_have_every_tensor_once(name):
    wire = seen(name)
    rows = words.rows(wire)
    for way in ("down", "up", "kept"):
        sizes = {i.name: i.bytes for i in wire.select(way)}
        assert sum(int(r["bytes"].replace(",", "")) for r in rows if r["way"] == way) == sum(
            sizes.values()
        )
    assert all(row["when"] and row["use"] for row in rows if row["way"] != "kept")
    assert [r["way"] for r in rows] == sorted((r["way"] for r in rows), key=words._WAYS.index)


def test_what_is_left_of_the_model():
    whole, rest = (
        {r["what"] for r in words.rows(seen(n)) if r["way"] == "up"} for n in ("fedavg", "fedbn")
    )
    assert whole == {"the model (8 tensors)", "the model (3 tensors)"}
    assert rest == {"the rest of the model (6 tensors)"}


def test_when():
    found = {(r["way"], r["what"].split(",")[0]): r["when"] for r in words.rows(seen("fedlsi"))}
    assert found["up", "fedlsi/head/layer.weight"] == "once, in 'warm-up'"
    assert found["down", "fedlsi/domain"] == "once, in 'translator'"
    assert found["up", "the model (8 tensors)"] == "every round of training"
    assert found["down", "the model (8 tensors)"] == "every round"


def test_sentences():
    text = " ".join(words.sentences(seen("fedavg")))
    assert "a client gets 1,524 bytes and sends 1,524 bytes." in text and "secure sum" in text
    text = " ".join(words.sentences(seen("importance")))
    assert "looks at each client's model" in text and "secure sum" not in text
    assert "Nothing of the model goes up." in words.sentences(seen("local"))
    assert "labels included" in words.sentences(seen("centralized"))[0]
    assert "fedgenp.gen_steps=1" in words.sentences(seen("fedgenp"))[-1]
