"""A site that misbehaves in the rounds that its file `faults.json` names, and is honest in others.

`python -m tests.deploy.rogue site …` takes the place of the guard's program. Rounds count from 1.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import sys
import time
from pathlib import Path

import torch

from fedshift import files
from fedshift.engines.flower import apps, codec, guard, serving
from fedshift.engines.flower.apart import Apart
from fedshift.engines.flower.codec import Message, Packet, Piece

HEAD = "model/head.weight"


class Rogue:
    """A site, and what it does wrong."""

    def __init__(self, site) -> None:
        self.site = site
        self.home = Path(os.environ[serving.SITE]).parent

    def answer(self, packet: Packet) -> Packet:
        """An honest answer, or what stands in `faults.json`."""
        head = codec.head_of(packet)
        faults = files.read_json(self.home / "faults.json")
        fault = faults.get(str(head.get("exchange", -2) + 1), "")
        if fault == "raise":
            raise RuntimeError("the disk is on fire")
        if fault == "die":
            os._exit(7)
        if fault.startswith("stop") and fault == f"stop-{head.get('kind')}":
            (self.home / "stopped").touch()
            time.sleep(3600)
        if fault == "hang":
            (self.home / "hang.begun").touch()
            time.sleep(3600)
        if fault.startswith("until"):  # somebody says go, or so many seconds
            last = time.monotonic() + float(fault.split("-")[1])
            while time.monotonic() < last and not (self.home / "go").exists():
                time.sleep(0.2)
        found = self.site.answer(packet)
        return SPOIL[fault](found) if fault in SPOIL else found


def tensor(packet: Packet, name: str, value: torch.Tensor) -> Packet:
    (piece,) = codec.encode(Message({}, {name: value})).pieces.values()
    return dataclasses.replace(packet, pieces={**packet.pieces, name: piece})


def pickled(packet: Packet) -> Packet:
    bomb = Piece("object", (1,), pickle.dumps(os.getcwd))
    return dataclasses.replace(packet, pieces={**packet.pieces, HEAD: bomb})


def huge(packet: Packet) -> Packet:
    """A gigabyte that cannot be folded: Flower sends equal pieces once."""
    piece = Piece("float64", (1 << 27,), os.urandom(1 << 30))
    return dataclasses.replace(packet, pieces={**packet.pieces, HEAD: piece})


SPOIL = {
    "nan": lambda p: tensor(p, HEAD, torch.full((3, 8), torch.nan).double()),
    "shape": lambda p: tensor(p, HEAD, torch.zeros(8, 3).double()),
    "name": lambda p: tensor(p, "model/evil", torch.zeros(3)),
    "pickle": pickled,
    "huge": huge,
}


def client():
    """The app of one message."""
    site = Apart(lambda node, packet: Rogue(serving.site()).answer(packet))

    def answer(node, packet: Packet) -> Packet:
        found = site(node, packet)
        if any(piece.dtype == "object" for piece in found.pieces.values()):
            apps._STYPE = "numpy.ndarray"  # what Flower itself would open
        return found

    return apps.client_app(answer)


if __name__ == "__main__":
    guard.main(sys.argv.pop(1), client)
