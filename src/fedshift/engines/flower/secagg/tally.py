"""The server's half of a secure sum: it passes on what it cannot read, and opens the sum alone.

Sites that fail at a step are left out of what follows. Those that went before they shared their
keys leave no trace; those that went later leave masks, which the others' shares take away.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from fedshift.engines.flower import codec
from fedshift.engines.flower.codec import Like, Message, Packet, Rejected
from fedshift.engines.flower.secagg import agreement, ring
from fedshift.engines.flower.secagg.member import SUMMED, Context, mask_key, sign
from fedshift.engines.flower.secagg.ring import Numbers, Vector
from fedshift.errors import BadRun

Ask = Callable[[Mapping[str, Packet]], tuple[dict[str, Packet], dict[str, str]]]
_OFFERED = ("seal", "mask", "origin")  # two public keys, and a fingerprint
_SIGNATURE = 400  # letters of a signature
Read = TypeVar("Read")
_SIGNED = {32: torch.int32, 64: torch.int64}


@dataclasses.dataclass(frozen=True)
class Tally:
    """One secure sum.

    Args:
        ask: takes packets to sites; the answers, and why others did not come.
        asked: what every message of this exchange says (run, exchange, token).
        least: how many sites must be left.
        size: how many numbers an upload has.
        width: bits of a ring element.
    """

    ask: Ask
    asked: Mapping[str, Any]
    least: int
    size: int
    width: int

    def sum(
        self, offers: Mapping[str, Mapping[str, str]]
    ) -> tuple[list[str], Numbers, dict[str, str]]:
        """Who is in the sum, the sum, and why others are not in it."""
        missing: dict[str, str] = {}
        keys = {name: dict(offer) for name, offer in sorted(offers.items())}
        self._enough(keys, "offered keys", missing)

        def sealed(name: str, packet: Packet) -> dict[str, str]:
            return _texts(codec.head_of(packet).get("sealed"), set(keys) - {name})

        shared = self._step("share", {n: {"members": keys} for n in keys}, sealed, missing)
        self._enough(shared, "shared their keys", missing)
        passed_on = {
            n: {"sealed": {o: shared[o][n] for o in shared if o != n}, "width": self.width}
            for n in shared
        }
        masked = self._step("mask", passed_on, self._vector, missing)
        self._enough(masked, "sent their upload", missing)
        left, gone = sorted(masked), sorted(set(shared) - set(masked))

        def shares(name: str, packet: Packet) -> dict[str, dict[str, str]]:
            head, size = codec.head_of(packet), agreement.SIZE
            return {
                "seeds": _texts(head.get("seeds"), set(left), size),
                "masks": _texts(head.get("masks"), set(gone), size),
            }

        late: dict[str, str] = {}  # who fails now is in the sum all the same
        opened = self._step("unmask", {n: {"left": left} for n in left}, shares, late)
        self._enough(opened, "opened the sum", late)
        whole = np.zeros(self.size, next(iter(masked.values())).dtype)
        for vector in masked.values():
            whole += vector
        self._unmask(whole, keys, left, gone, opened)
        return left, ring.out_of(whole), missing

    # -- steps ---------------------------------------------------------------------------------

    def _step(
        self,
        kind: str,
        heads: Mapping[str, Mapping[str, Any]],
        read: Callable[[str, Packet], Read],
        missing: dict[str, str],
    ) -> dict[str, Read]:
        """What is read in the answers to one step."""
        packets = {
            n: codec.encode(Message({**self.asked, **head, "kind": kind}))
            for n, head in heads.items()
        }
        back, why = self.ask(packets)
        missing |= {n: why.get(n, "no answer") for n in heads if n not in back}
        good = {}
        for name in (n for n in heads if n in back):
            try:
                codec.check_answer(codec.head_of(back[name]), kind, name, self.asked)
                good[name] = read(name, back[name])
            except Rejected as error:
                missing[name] = str(error)
        return good

    def _vector(self, name: str, packet: Packet) -> Vector:
        """An upload under masks."""
        like = Like(_SIGNED[self.width], (self.size,))
        signed = codec.decode(packet, {SUMMED: like}).tensors[SUMMED].numpy()
        return signed.view(np.dtype(f"<u{signed.dtype.itemsize}"))

    def _enough(self, there: Mapping[str, Any], did: str, missing: Mapping[str, str]) -> None:
        if len(there) < self.least:
            reasons = "; ".join(f"'{n}': {why}" for n, why in missing.items())
            raise BadRun(
                f"{len(there)} sites {did}, and a sum is opened for {self.least} at least"
                f"{f' ({reasons})' if reasons else ''}: mend them and resume the run"
            )

    # -- opening -------------------------------------------------------------------------------

    def _unmask(
        self,
        whole: Vector,
        keys: Mapping[str, Mapping[str, str]],
        left: Sequence[str],
        gone: Sequence[str],
        opened: Mapping[str, Mapping[str, Mapping[str, str]]],
    ) -> None:
        """Take all masks off the sum, in place."""
        context, index = Context.of(self.asked), {n: k for k, n in enumerate(sorted(keys), 1)}

        def joined(what: str, name: str) -> bytes:
            found = {index[h]: bytes.fromhex(told[what][name]) for h, told in opened.items()}
            return agreement.join(found, self.least)

        for name in left:
            ring.mask(whole, joined("seeds", name), -1)
        for name in gone:
            secret = joined("masks", name)
            if agreement.public(secret).hex() != keys[name]["mask"]:
                raise BadRun(
                    f"the shares of the key of site '{name}', which went away, are false: see that "
                    "all sites run the same version and are honest, and resume"
                )
            for other in left:
                public = bytes.fromhex(keys[other]["mask"])
                seed = mask_key(context, secret, public, other, name)
                ring.mask(whole, seed, -sign(other, name))


def offer_of(head: Mapping[str, Any], digest: str) -> dict[str, str]:
    """The keys that a site offers with its trip, if it uploads what the method declares."""
    if head.get("layout") != digest:
        raise Rejected("it would sum other tensors than the method declares: run one version")
    given = head.get("keys")
    if not isinstance(given, dict):
        raise Rejected("it offers no keys")
    found = _texts({n: given.get(n) for n in _OFFERED}, set(_OFFERED), agreement.SIZE)
    signature = given.get("signature", "")
    if not isinstance(signature, str) or len(signature) > _SIGNATURE:
        raise Rejected("its signature is none")
    return {**found, "signature": signature}


def _texts(given: Any, names: set[str], size: int = 0) -> dict[str, str]:
    """A table of names and hexadecimal text, of so many bytes each where that is given."""
    good = isinstance(given, dict) and set(given) == names
    if not good or not all(_hex(t, size) for t in given.values()):
        raise Rejected("what it sends for the secure sum is incomplete")
    return dict(given)


def _hex(text: Any, size: int) -> bool:
    try:
        found = bytes.fromhex(text) if isinstance(text, str) and text.isascii() else b""
    except ValueError:
        return False
    return len(found) == size if size else bool(found)
