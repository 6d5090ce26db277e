"""Packets in Flower's records: what goes in comes out, and nothing else is opened."""

from __future__ import annotations

import json
import pickle
from types import SimpleNamespace

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedshift.engines.flower import apps, codec
from fedshift.engines.flower.apps import pack, unpack
from fedshift.engines.flower.codec import Message, Rejected

TENSORS = {
    "model/w": torch.randn(3, 4),
    "extra/m": torch.arange(5),
    "model/empty": torch.zeros(0, 2),
    "payload/b": torch.randn(2).to(torch.bfloat16),
}


def test_packets_come_out_as_they_went_in():
    packet = codec.encode(Message({"round": 1}, TENSORS))
    again = unpack(pack(packet))
    assert again.head == packet.head and dict(again.pieces) == dict(packet.pieces)
    assert set(pack(packet)["tensors"]) == {"model", "rest"}


def test_the_model_is_the_same_bytes_for_all_sites():
    one, other = (
        pack(codec.encode(Message({"site": s}, {**TENSORS, "payload/x": torch.full((2,), s)})))
        for s in (1, 2)
    )
    assert one["tensors"]["model"].data == other["tensors"]["model"].data


def records(index=None, stype="fedshift", data=b"12345678", **more):
    head = {"json": '{"format": 1}', "index": json.dumps(index)}
    array = Array("uint8", (len(data),), stype, data)
    return RecordDict({"head": ConfigRecord(head), "tensors": ArrayRecord({"rest": array}), **more})


W = ["rest", "w", "float32", [2], 8]


@pytest.mark.parametrize(
    "content, complaint",
    [
        (records([W], stype="numpy.ndarray", data=pickle.dumps(print)), "never opened"),
        (records([W], more=ConfigRecord({})), "no message of fedshift's"),
        (RecordDict({}), "no message of fedshift's"),
        (records([["rest", "w", "float32", [3], 12]]), "not those of its index"),
        (records([["model", "w", "float32", [2], 8]]), "not those of its index"),
        (records([[*W[:4], 4], [*W[:4], 4]]), "not those of its index"),
        (records([[*W[:4], 4]]), "more than its index"),
        (records([[*W[:4], -4]]), "cannot be read"),
        (records([[*W[:4], True]]), "cannot be read"),
        (records([W[:3]]), "cannot be read"),
        (records(7), "cannot be read"),
    ],
)
def test_what_is_no_packet_is_refused(content, complaint):
    with pytest.raises(Rejected, match=complaint):
        unpack(content)


class Blinking:
    """A grid that hears nobody for a few looks."""

    def __init__(self, looks: int) -> None:
        self.left = looks

    def get_nodes(self):
        self.left -= 1
        return [SimpleNamespace(name="a", node_id=7)] if self.left < 0 else []


def test_a_site_that_has_just_answered_is_waited_for(monkeypatch):
    monkeypatch.setattr(apps, "_POLL", 0.001)
    carrier = apps.GridCarrier(Blinking(3), ("a",), registered=True)
    assert carrier._again(set()) == {}, "nobody has answered yet"
    assert carrier._again({"a"}) == {"a": 7}
    monkeypatch.setattr(apps, "_CUT_OFF", 0.01)
    assert apps.GridCarrier(Blinking(10**9), ("a",), registered=True)._again({"a"}) == {}
