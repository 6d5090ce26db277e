"""A site's half of a secure sum: four answers, each given once, and what must last between them.

Sites are processes that end with every message, so keys, shares and the upload lie on the site's
own disk, readable for its owner alone, until the sum is opened or the next one begins.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedshift import files
from fedshift.engines.flower.certs import owner_only
from fedshift.engines.flower.codec import ECHO, Message, Rejected
from fedshift.engines.flower.secagg import agreement, ring
from fedshift.engines.flower.secagg.identity import Identity
from fedshift.engines.flower.secagg.ring import Numbers
from fedshift.errors import BadRun

SUMMED = "summed"  # the tensor in which an upload travels under masks
NOBODY = Identity()
_KEYS = 2 * agreement.SIZE  # letters of a key


@dataclasses.dataclass(frozen=True)
class Context:
    """Which sum it is; every derived key is of one."""

    run: str
    exchange: int
    token: str

    @classmethod
    def of(cls, head: Mapping[str, Any]) -> Context:
        """Of a message."""
        return cls(*(head[n] for n in ECHO))

    def purpose(self, what: str, one: str, other: str) -> str:
        """What a key is for, between whom.

        >>> Context("ab", 3, "cd").purpose("mask", "north", "south")
        '["fedshift", "mask", "ab", 3, "cd", "north", "south"]'
        """
        return json.dumps(["fedshift", what, self.run, self.exchange, self.token, one, other])


def mask_key(context: Context, secret: bytes, public: bytes, one: str, other: str) -> bytes:
    """The seed of the mask that two sites have in common."""
    return agreement.agreed(secret, public, context.purpose("mask", *sorted((one, other))))


def sign(one: str, other: str) -> int:
    """Which of two sites adds their mask: the first by name; the other takes it away."""
    return 1 if one < other else -1


class Member:
    """One site in one run.

    Args:
        name: the site's.
        folder: of the run at the site.
        identity: its own key, and the others'.
    """

    def __init__(self, name: str, folder: Path, identity: Identity = NOBODY) -> None:
        self._name = name
        self._identity = identity
        self._folder = folder / "secret"
        self._pending = self._folder / "pending.json"
        self._upload = self._folder / "upload.safetensors"
        self._opened = folder / "opened.json"

    def offer(self, head: Mapping[str, Any], numbers: Numbers, origin: str = "") -> dict[str, str]:
        """1. Keep the upload, and offer public keys; `origin` is what all uploads began from."""
        secure = head["secure"]
        seal_secret, seal_public = agreement.pair()
        mask_secret, mask_public = agreement.pair()
        with owner_only():
            files.save_tensors(self._upload, {"numbers": torch.from_numpy(numbers)}, {})
        self._save(
            {
                "step": "offered",
                "context": list(dataclasses.astuple(Context.of(head))),
                "least": int(secure["least"]),
                "seal": seal_secret.hex(),
                "mask": mask_secret.hex(),
                "origin": origin,
            }
        )
        offer = {"seal": seal_public.hex(), "mask": mask_public.hex(), "origin": origin}
        signature = self._identity.signature(_signed(Context.of(head), self._name, offer))
        return {**offer, "signature": signature}

    def share(self, head: Mapping[str, Any]) -> Message:
        """2. Draw a seed; share it and the masks' private key among all, each share sealed."""
        now = self._at("offered", head)
        members: dict[str, dict[str, str]] = head["members"]
        least = now["least"]
        _check_members(members, self._name, now, least)
        context, seed = Context.of(head), os.urandom(agreement.SIZE)
        for name in members:
            signed = _signed(context, name, members[name])
            self._identity.check(name, signed, members[name].get("signature"))
        names = sorted(members)
        seeds = agreement.split(seed, least, len(names))
        masks = agreement.split(bytes.fromhex(now["mask"]), least, len(names))
        sealed, own = {}, ""
        for name, *both in zip(names, seeds, masks, strict=True):
            if name == self._name:
                own = b"".join(both).hex()
                continue
            key = self._seal_key(context, now, members, self._name, name)
            about = context.purpose("shares", self._name, name)
            sealed[name] = agreement.seal(key, b"".join(both), about).hex()
        self._save(now | {"step": "shared", "seed": seed.hex(), "members": members, "own": own})
        return Message({"kind": "share", "sealed": sealed})

    def mask(self, head: Mapping[str, Any]) -> Message:
        """3. The upload under masks, once the shares of all that it is masked with are here."""
        now = self._at("shared", head)
        context, members = Context.of(head), now["members"]
        others: dict[str, str] = head["sealed"]
        if not set(others) < set(members) or self._name in others:
            raise Rejected("shares came of sites that were not named before")
        _check_count(len(others) + 1, now["least"])
        shares = {self._name: now["own"]}
        vector = ring.into(files.load_tensors(self._upload)[0]["numbers"].numpy(), head["width"])
        ring.mask(vector, bytes.fromhex(now["seed"]), 1)
        secret = bytes.fromhex(now["mask"])
        for name, closed in others.items():
            key = self._seal_key(context, now, members, name, self._name)
            about = context.purpose("shares", name, self._name)
            try:
                shares[name] = agreement.unseal(key, bytes.fromhex(closed), about).hex()
            except Rejected:
                raise Rejected(f"the shares of site '{name}' cannot be opened") from None
            public = bytes.fromhex(members[name]["mask"])
            common = mask_key(context, secret, public, self._name, name)
            ring.mask(vector, common, sign(self._name, name))
        self._save(now | {"step": "masked", "shares": shares})
        self._upload.unlink(missing_ok=True)
        signed = vector.view(np.dtype(f"<i{vector.dtype.itemsize}"))
        return Message({"kind": "mask"}, {SUMMED: torch.from_numpy(signed)})

    def unmask(self, head: Mapping[str, Any]) -> Message:
        """4. Shares of the seeds of sites that are left, and of the keys of those that are not."""
        now = self._at("masked", head)
        shares, left = now["shares"], sorted(head["left"])
        if not set(left) <= set(shares) or self._name not in left:
            raise Rejected("the sum is said to be of sites that it cannot be of")
        _check_count(len(set(left)), now["least"])
        self._note(head, left)
        self._pending.unlink(missing_ok=True)  # whatever else is asked, it was answered once
        half = _KEYS
        return Message(
            {
                "kind": "unmask",
                "seeds": {n: shares[n][:half] for n in left},
                "masks": {n: s[half:] for n, s in shares.items() if n not in left},
            }
        )

    # -- what lasts ----------------------------------------------------------------------------

    def _seal_key(
        self, context: Context, now: Mapping[str, Any], members: Mapping[str, Any], *ways: str
    ) -> bytes:
        """The key for shares from one site to another."""
        one, other = ways
        peer = other if one == self._name else one
        public = bytes.fromhex(members[peer]["seal"])
        secret = bytes.fromhex(now["seal"])
        return agreement.agreed(secret, public, context.purpose("seal", one, other))

    def _at(self, step: str, head: Mapping[str, Any]) -> dict[str, Any]:
        """What is pending, if it is of this sum and at this step."""
        if not self._pending.exists():
            raise Rejected("it has no upload waiting to be summed")
        now: dict[str, Any] = files.read_json(self._pending)
        if now["context"] != list(dataclasses.astuple(Context.of(head))) or now["step"] != step:
            raise Rejected("it was asked for a step of a secure sum that is not the next")
        return now

    def _save(self, now: Mapping[str, Any]) -> None:
        with owner_only():
            files.write_json(self._pending, now)

    def _note(self, head: Mapping[str, Any], left: list[str]) -> None:
        """Remember of whom a round's sum was opened; another sum of it would tell one upload.

        A round is repeated to the bit after a server has died, so that two sums of it that differ
        by one site differ by that site's upload.
        """
        known: dict[str, list[str]] = {}
        if self._opened.exists():
            known = files.read_json(self._opened)
        number = str(head["exchange"])
        if known.get(number, left) != left:
            raise BadRun(
                f"the sum of this round was opened before, of {', '.join(known[number])}; a second "
                "one, of others, would give single uploads away: let the same sites take part, or "
                "begin a new run"
            )
        files.write_json(self._opened, {**known, number: left})


def _check_members(
    members: Mapping[str, Mapping[str, str]], name: str, now: Mapping[str, Any], least: int
) -> None:
    """Refuse to share among fewer than must be, or under keys that are not everybody's own."""
    _check_count(len(members), least)
    if 2 * least <= len(members):
        raise Rejected(f"{least} of {len(members)} sites could open a sum: it must be over half")
    own = {n: agreement.public(bytes.fromhex(now[n])).hex() for n in ("seal", "mask")}
    if name not in members or any(members[name].get(n) != key for n, key in own.items()):
        raise Rejected("the keys that were named as its own are not")
    for other, member in members.items():
        if member.get("origin") != now["origin"]:
            raise Rejected(f"site '{other}' was sent another model, stage or rate than this one")
    each = [member[n] for member in members.values() for n in ("seal", "mask")]
    if len(set(each)) < len(each):
        raise Rejected("two sites were named with one key")


def _signed(context: Context, name: str, offer: Mapping[str, str]) -> str:
    """What a site signs of its offer."""
    return context.purpose("offer", name, "/".join(offer[n] for n in ("seal", "mask", "origin")))


def _check_count(count: int, least: int) -> None:
    if least < 2 or count < least:
        raise Rejected(f"a sum over {count} sites would be opened, and {max(2, least)} must be")
