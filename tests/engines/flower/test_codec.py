"""Messages as bytes: what goes in comes out, and nothing else is let in."""

from __future__ import annotations

import dataclasses
import json
import pickle

import pytest
import torch

from fedshift.engines.flower import codec
from fedshift.engines.flower.codec import Like, Message, Packet, Piece, Rejected

TENSORS = {
    "model/conv.weight": torch.randn(3, 2, 5),
    "a b/ü": torch.randn(4, dtype=torch.float64),
    "half": torch.randn(2, 2).to(torch.float16),
    "brain": torch.randn(3, 1).to(torch.bfloat16),
    "count": torch.tensor(7),
    "bytes": torch.arange(256, dtype=torch.uint8),
    "yes": torch.tensor([True, False]),
    "nothing": torch.zeros(0, 3),
    "nan": torch.tensor([float("nan"), float("inf"), -0.0]),
    "turned": torch.arange(6.0).reshape(2, 3).t(),
}


def packet(**changes) -> Packet:
    sent = codec.encode(Message({"round": 1}, {"w": torch.tensor([1.0, 2.0])}))
    return dataclasses.replace(sent, **changes)


def test_every_type_and_shape_comes_out_as_it_went_in():
    head = {"site": "a", "exchange": 3, "lr": 0.1, "loss": {"task": 1 / 3}, "why": None}
    sent = codec.encode(Message(head, TENSORS))
    got = codec.decode(sent, {n: Like.of(t) for n, t in TENSORS.items()})
    assert {k: v for k, v in got.head.items() if k != "format"} == head
    for name, t in TENSORS.items():
        assert got.tensors[name].dtype == t.dtype and got.tensors[name].shape == t.shape
        one, other = (x.contiguous().reshape(-1).view(torch.uint8) for x in (t, got.tensors[name]))
        assert torch.equal(one, other), name
        if t.numel():
            got.tensors[name].zero_()  # the receiver's own memory
    assert sent.nbytes >= sum(t.numel() * t.element_size() for t in TENSORS.values())


def test_types_that_cannot_travel_are_refused_by_name():
    with pytest.raises(Rejected, match="'z' has type complex64"):
        codec.encode(Message({}, {"z": torch.zeros(2, dtype=torch.complex64)}))


W = {"w": Like(torch.float32, (2,))}


@pytest.mark.parametrize(
    "sent, complaint",
    [
        (packet(pieces={}), "lacks 'w'"),
        (packet(pieces={**packet().pieces, "evil": Piece("int8", (1,), b"1")}), "holds 'evil'"),
        (packet(pieces={"w": Piece("float64", (2,), bytes(16))}), "type float64 instead"),
        (packet(pieces={"w": Piece("float32", (2, 1), bytes(8))}), r"shape \[2, 1\] instead"),
        (packet(pieces={"w": Piece("float32", (2,), bytes(12))}), "12 bytes, its shape needs 8"),
        (packet(pieces={"w": Piece("object", (2,), pickle.dumps([1, 2]))}), "type object instead"),
        (packet(head=pickle.dumps({"round": 1}).decode("latin1")), "not JSON"),
        (packet(head="[1]"), "not of format"),
        (packet(head=json.dumps({"format": 99})), "not of format"),
        (packet(head='{"format": 1, "loss": NaN}'), "not JSON"),
        (packet(head="[" * 100_000), "not JSON"),
        (packet(head=" " * (1 << 21)), "sensible length"),
    ],
)
def test_what_is_not_expected_is_rejected(sent, complaint):
    with pytest.raises(Rejected, match=complaint):
        codec.decode(sent, W)


def test_sizes_are_compared_before_anything_is_made():
    """A shape of 2**60 numbers must not be tried."""
    with pytest.raises(Rejected, match="instead of"):
        codec.decode(packet(pieces={"w": Piece("float32", (1 << 60,), b"")}), W)
    with pytest.raises(Rejected, match="0 bytes, its shape needs"):
        codec.decode(packet(pieces={"w": Piece("float32", (1 << 60,), b"")}))
    with pytest.raises(Rejected, match="impossible shape"):
        codec.decode(packet(pieces={"w": Piece("float32", (-1, -2), bytes(8))}))


def test_strange_names_stay_on_one_line():
    strange = "x\n\x1b[31m" * 100
    with pytest.raises(Rejected) as refused:
        codec.decode(packet(pieces={**packet().pieces, strange: Piece("int8", (1,), b"1")}), W)
    assert len(str(refused.value)) < 150 and str(refused.value).isprintable()
