"""What crosses between server and sites, as bytes: named tensors and a head of plain values.

A tensor travels as its type's name, its shape and its raw bytes; the head as JSON. Nothing is ever
unpickled, and nothing becomes a tensor before its name, type, shape and size have been compared
with what the receiver expects.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedshift.errors import FedshiftError
from fedshift.tree import Tree

FORMAT = 1
DTYPES = {
    str(t).removeprefix("torch."): t
    for t in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}
ECHO = ("run", "exchange", "token")  # what an answer repeats of its question
_HEAD = 1 << 20  # characters that a head may have


class Rejected(FedshiftError):
    """A message that is not what it should be; it says why, and never reaches the model."""


@dataclasses.dataclass(frozen=True)
class Message:
    """Named tensors, and plain values (what JSON holds) beside them."""

    head: Mapping[str, Any]
    tensors: Tree = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Piece:
    """A tensor as it travels."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclasses.dataclass(frozen=True)
class Packet:
    """A message as it travels."""

    head: str
    pieces: Mapping[str, Piece]

    @property
    def nbytes(self) -> int:
        """Bytes of head, names and tensors."""
        names = sum(len(n.encode()) for n in self.pieces)
        return len(self.head.encode()) + names + sum(len(p.data) for p in self.pieces.values())


@dataclasses.dataclass(frozen=True)
class Like:
    """What a tensor must be: its type and shape."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Like:
        """The type and shape of a tensor.

        >>> Like.of(torch.zeros(2, 3))
        Like(dtype=torch.float32, shape=(2, 3))
        """
        return cls(tensor.dtype, tuple(tensor.shape))


def encode(message: Message) -> Packet:
    """A message as it travels.

    >>> packet = encode(Message({"round": 3}, {"w": torch.tensor([1.0, 2.0])}))
    >>> packet.pieces["w"]
    Piece(dtype='float32', shape=(2,), data=b'\\x00\\x00\\x80?\\x00\\x00\\x00@')
    >>> decode(packet).tensors["w"]
    tensor([1., 2.])
    """
    head = json.dumps({"format": FORMAT, **message.head}, allow_nan=False, sort_keys=True)
    return Packet(head, {n: _pack(n, t) for n, t in message.tensors.items()})


def head_of(packet: Packet) -> dict[str, Any]:
    """The plain values of a packet."""
    if not isinstance(packet.head, str) or len(packet.head) > _HEAD:
        raise Rejected("its head is no text of a sensible length")
    try:
        head = json.loads(packet.head, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Rejected("its head is not JSON") from None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise Rejected(f"it is not of format {FORMAT}: install one version of fedshift everywhere")
    return head


def check_answer(head: Mapping[str, Any], kind: str, site: str, asked: Mapping[str, Any]) -> None:
    """Refuse what is no answer of a site to a question of this kind."""
    if head.get("kind") == "failed":
        raise Rejected(f"the site failed: {short(head.get('why', ''), 300)}")
    if any(head.get(n) != asked[n] for n in ECHO):
        raise Rejected("it answers another question: it is late, or was sent before")
    if head.get("site") != site:
        raise Rejected(f"it speaks for site '{short(head.get('site', ''))}'")
    if head.get("kind") != kind:
        raise Rejected(f"it is a '{short(head.get('kind', ''))}', not a {kind}")


def decode(packet: Packet, expected: Mapping[str, Like] | None = None) -> Message:
    """The message of a packet; with `expected`, exactly these tensors are accepted."""
    head = head_of(packet)
    if expected is not None:
        check(packet, expected)
    return Message(head, {n: _unpack(n, p) for n, p in packet.pieces.items()})


def check(packet: Packet, expected: Mapping[str, Like]) -> None:
    """Refuse a packet whose tensors are not those expected, before any of them is made."""
    unknown = [n for n in packet.pieces if n not in expected]
    if unknown:
        raise Rejected(f"it holds '{short(unknown[0])}', which the method does not send")
    missing = [n for n in expected if n not in packet.pieces]
    if missing:
        raise Rejected(f"it lacks '{missing[0]}', which the method sends")
    for name, like in expected.items():
        piece = packet.pieces[name]
        if DTYPES.get(piece.dtype) != like.dtype:
            raise Rejected(f"'{name}' has type {short(piece.dtype)} instead of {like.dtype}")
        if tuple(piece.shape) != like.shape:
            given = short(str(list(piece.shape)))
            raise Rejected(f"'{name}' has shape {given} instead of {list(like.shape)}")


def not_finite(names: Iterable[str], tensors: Mapping[str, Tensor]) -> str | None:
    """The first of some tensors that holds a NaN or an infinity (None: none does)."""
    for name in names:
        t = tensors[name]
        if t.is_floating_point() and not bool(torch.isfinite(t).all()):
            return name
    return None


def _pack(name: str, tensor: Tensor) -> Piece:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise Rejected(f"'{name}' has type {dtype}, which cannot travel: use {', '.join(DTYPES)}")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return Piece(dtype, tuple(tensor.shape), data)


def _unpack(name: str, piece: Piece) -> Tensor:
    dtype = DTYPES.get(piece.dtype)
    if dtype is None:
        raise Rejected(f"'{short(name)}' has an unknown type")
    if any(not isinstance(n, int) or n < 0 for n in piece.shape):
        raise Rejected(f"'{short(name)}' has an impossible shape")
    size = math.prod(piece.shape) * dtype.itemsize
    if len(piece.data) != size:
        raise Rejected(f"'{short(name)}' has {len(piece.data)} bytes, its shape needs {size}")
    if dtype == torch.bool and piece.data.strip(b"\x00\x01"):
        raise Rejected(f"'{short(name)}' holds what is neither true nor false")
    # into memory of torch's own, which is aligned: on that the rounding of fast kernels depends
    made = torch.empty(piece.shape, dtype=dtype)
    if size:
        made.reshape(-1).view(torch.uint8).numpy()[:] = np.frombuffer(piece.data, np.uint8)
    return made


def short(text: object, most: int = 60) -> str:
    """A stranger's text, fit for one line of a log.

    >>> short("a\\nb" * 100, 5)
    'a?ba?…'
    """
    clean = "".join(c if c.isprintable() else "?" for c in str(text))
    return clean if len(clean) <= most else f"{clean[:most]}…"


def _no_constant(text: str) -> Any:
    raise ValueError(text)
