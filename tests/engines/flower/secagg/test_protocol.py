"""Four sites and a server sum vectors: the sum is exact, uploads look random, and who goes may."""

from __future__ import annotations

import dataclasses
import stat

import numpy as np
import pytest

from fedshift.engines.flower import certs, codec
from fedshift.engines.flower.codec import Message, Rejected
from fedshift.engines.flower.secagg import agreement, ring
from fedshift.engines.flower.secagg.identity import Identity
from fedshift.engines.flower.secagg.member import NOBODY, SUMMED, Context, Member, mask_key
from fedshift.engines.flower.secagg.tally import Tally, offer_of
from fedshift.errors import BadRun, FedshiftError

NAMES = ("a", "b", "c", "d")
ASKED = {"run": "0123abcd", "exchange": 3, "token": "ffff", "seconds": 1}
SIZE = 500
OFFER = {"seal": "00" * 32, "mask": "11" * 32, "origin": "22" * 32}
STEPS = ("share", "mask", "unmask")


class Parties:
    """Sites whose processes end with every message, and a wire that may lose or change packets."""

    def __init__(self, folder, least=3, width=64, gone=(), change=None, asked=ASKED):
        self.folder, self.least, self.width, self.asked = folder, least, width, asked
        self.gone, self.change = dict(gone), change
        self.identity: dict[str, Identity] = {}
        self.origins: dict[str, str] = {}
        draw = np.random.default_rng(0)
        self.numbers = {n: draw.integers(-(2**20), 2**20, SIZE) for n in NAMES}
        self.seen: dict[str, dict[str, codec.Packet]] = {step: {} for step in STEPS}

    def member(self, name):
        return Member(name, self.folder / name, self.identity.get(name, NOBODY))

    def offers(self):
        head = {**self.asked, "secure": {"least": self.least}}
        origin = {n: self.origins.get(n, "00") for n in NAMES}
        return {n: self.member(n).offer(head, self.numbers[n], origin[n]) for n in NAMES}

    def answer(self, name, packet):
        head = codec.head_of(packet)
        try:
            found = getattr(self.member(name), head["kind"])(head)
        except FedshiftError as error:
            found = Message({"kind": "failed", "why": str(error)})
        echo = {n: head[n] for n in codec.ECHO}
        return codec.encode(Message({**found.head, **echo, "site": name}, found.tensors))

    def ask(self, packets):
        back, missing = {}, {}
        for name, packet in packets.items():
            step = codec.head_of(packet)["kind"]
            if name in self.gone and STEPS.index(step) >= STEPS.index(self.gone[name]):
                missing[name] = "no answer in time"
                continue
            if self.change is not None:
                packet = self.change(name, packet)
            back[name] = self.seen[step][name] = self.answer(name, packet)
        return back, missing

    def sum(self, offers=None):
        tally = Tally(self.ask, self.asked, self.least, SIZE, self.width)
        return tally.sum(offers or self.offers())


@pytest.mark.parametrize("width", [32, 64])
def test_the_sum_is_exact(width, tmp_path):
    parties = Parties(tmp_path, width=width)
    left, total, missing = parties.sum()
    assert left == list(NAMES) and missing == {}
    assert (total == sum(parties.numbers.values())).all()


def test_each_upload_looks_uniform_and_is_no_other(tmp_path):
    """Of 500 uniform elements, the high bit is set in 250, give or take four deviations of 11."""
    parties = Parties(tmp_path)
    parties.sum()
    uploads = {
        n: codec.decode(p).tensors[SUMMED].numpy().view(np.uint64)
        for n, p in parties.seen["mask"].items()
    }
    for name, upload in uploads.items():
        high = upload >> np.uint64(63)
        assert abs(int(high.sum()) - SIZE / 2) < 45
        assert len(np.unique(upload >> np.uint64(56))) > 200, "of 256 high bytes"
        assert np.abs(ring.out_of(upload) - parties.numbers[name]).min() > 2**30
    two = uploads["a"] + uploads["b"]
    assert np.abs(ring.out_of(two)).min() > 2**30, "two uploads together are masked as well"


def test_a_server_that_opens_a_seed_sees_no_upload(tmp_path):
    """It learns every seed in the end; what sites have in common two by two stays on."""
    parties = Parties(tmp_path)
    parties.sum()
    shares = {
        k: bytes.fromhex(codec.head_of(parties.seen["unmask"][n])["seeds"]["a"])
        for k, n in enumerate(NAMES, 1)
    }
    upload = codec.decode(parties.seen["mask"]["a"]).tensors[SUMMED].numpy().view(np.uint64)
    ring.mask(upload, agreement.join(shares, parties.least), -1)
    assert np.abs(ring.out_of(upload)).min() > 2**30


def test_the_same_numbers_are_masked_anew_in_another_exchange(tmp_path):
    uploads = []
    for exchange in (3, 4):
        parties = Parties(tmp_path, asked={**ASKED, "exchange": exchange})
        parties.sum()
        uploads.append(codec.decode(parties.seen["mask"]["a"]).tensors[SUMMED])
    assert (uploads[0] != uploads[1]).all()


@pytest.mark.parametrize("step", ["share", "mask"])
def test_who_goes_away_is_left_out_of_the_sum(step, tmp_path):
    """Before it shared its keys, or after: then its masks are in the others' uploads."""
    parties = Parties(tmp_path, gone={"b": step})
    left, total, missing = parties.sum()
    assert left == ["a", "c", "d"] and missing == {"b": "no answer in time"}
    assert (total == sum(parties.numbers[n] for n in left)).all()


def test_who_goes_away_after_its_upload_is_in_the_sum(tmp_path):
    parties = Parties(tmp_path, gone={"b": "unmask"})
    left, total, missing = parties.sum()
    assert left == list(NAMES) and missing == {}
    assert (total == sum(parties.numbers.values())).all()


@pytest.mark.parametrize("step", STEPS)
def test_below_the_threshold_nothing_is_opened(step, tmp_path):
    parties = Parties(tmp_path, gone={"b": step, "c": step})
    did = {"share": "shared their keys", "mask": "sent their upload", "unmask": "opened the sum"}
    with pytest.raises(BadRun, match=f"2 sites {did[step]}, .* for 3 at least .*'b': no answer"):
        parties.sum()


def test_no_site_gives_shares_of_both_secrets_of_another(tmp_path):
    parties = Parties(tmp_path, gone={"b": "mask"})
    parties.sum()
    for packet in parties.seen["unmask"].values():
        head = codec.head_of(packet)
        assert set(head["seeds"]) == {"a", "c", "d"} and set(head["masks"]) == {"b"}


def test_fewer_shares_than_the_least_are_no_secret():
    shares = agreement.split(bytes(range(32)), 3, 4)
    assert agreement.join({1: shares[0], 2: shares[1], 4: shares[3]}, 3) == bytes(range(32))
    assert agreement.join({1: shares[0], 2: shares[1]}, 2) != bytes(range(32))


# ---------------------------------------------------------------------------- servers that cheat


def asking(parties, kind, name, **head):
    packet = codec.encode(Message({**ASKED, **head, "kind": kind}))
    return codec.head_of(parties.answer(name, packet))


def test_a_site_answers_each_step_once(tmp_path):
    parties = Parties(tmp_path)
    parties.sum()
    again = asking(parties, "unmask", "a", left=["a", "b", "c"])
    assert "no upload waiting" in again["why"]
    offers = parties.offers()
    assert asking(parties, "share", "a", members=offers)["kind"] == "share"
    assert "not the next" in asking(parties, "share", "a", members=offers)["why"]
    assert "not the next" in asking(parties, "unmask", "a", left=["a", "b", "c"])["why"]


def test_a_repeated_round_is_opened_for_the_same_sites_alone(tmp_path):
    """Two sums of one round, of a, b, c, d and of a, c, d, would give the upload of b away."""
    Parties(tmp_path).sum()
    assert Parties(tmp_path).sum()[0] == list(NAMES)
    with pytest.raises(BadRun, match="opened before, of a, b, c, d; a second one"):
        Parties(tmp_path, gone={"b": "share"}).sum()


def test_keys_of_nobody_and_small_thresholds_are_refused(tmp_path):
    parties = Parties(tmp_path, least=2)
    offers = parties.offers()
    assert "must be over half" in asking(parties, "share", "a", members=offers)["why"]
    two = {n: offers[n] for n in "ab"}
    swapped = {**two, "a": offers["b"]}
    assert "named as its own are not" in asking(parties, "share", "a", members=swapped)["why"]
    doubled = {**two, "c": offers["b"]}
    assert "with one key" in asking(parties, "share", "a", members=doubled)["why"]
    alone = {"a": offers["a"]}
    assert "over 1 sites" in asking(parties, "share", "a", members=alone)["why"]
    none = {**two["b"], "seal": "00" * 32}
    assert "key is none" in asking(parties, "share", "a", members={**two, "b": none})["why"]


def test_a_sum_of_fewer_than_must_be_is_not_opened(tmp_path):
    parties = Parties(tmp_path, gone=dict.fromkeys(NAMES, "unmask"))
    with pytest.raises(BadRun, match="0 sites opened the sum"):
        parties.sum()
    for left in (["a", "b"], ["a"], ["a", "a", "b"], ["b", "c", "d"]):
        assert asking(parties, "unmask", "a", left=left)["kind"] == "failed"
    assert asking(parties, "unmask", "a", left=["a", "b", "c"])["kind"] == "unmask"


def test_the_sum_is_of_those_whose_shares_are_there(tmp_path):
    lies = {
        "mask": lambda head: {**head, "sealed": {**head["sealed"], "x": "00"}},
        "unmask": lambda head: {**head, "left": ["a", "x", "c", "d"]},
    }
    for step, lie in lies.items():

        def change(name, packet, step=step, lie=lie):
            head = codec.head_of(packet)
            if head["kind"] != step or name != "a":
                return packet
            return codec.encode(Message(lie(head)))

        parties = Parties(tmp_path / step, change=change)
        left, total, _ = parties.sum()
        assert (total == sum(parties.numbers[n] for n in left)).all()
        assert ("a" in left) == (step == "unmask")


def test_changed_shares_are_found_and_their_sender_named(tmp_path):
    def change(name, packet):
        head = codec.head_of(packet)
        if head["kind"] != "mask" or name != "a":
            return packet
        sealed = head["sealed"]["b"]
        flipped = f"{int(sealed[:2], 16) ^ 1:02x}{sealed[2:]}"
        return codec.encode(Message({**head, "sealed": {**head["sealed"], "b": flipped}}))

    left, _, missing = Parties(tmp_path, change=change).sum()
    assert left == ["b", "c", "d"] and "shares of site 'b' cannot be opened" in missing["a"]


def test_false_shares_of_a_key_are_found(tmp_path):
    parties = Parties(tmp_path, gone={"b": "mask"})
    honest = parties.answer

    def answer(name, packet):
        found = honest(name, packet)
        head = codec.head_of(found)
        if head["kind"] != "unmask" or name != "a":
            return found
        return codec.encode(Message({**head, "masks": {"b": "00" * 32}}))

    parties.answer = answer
    with pytest.raises(BadRun, match="shares of the key of site 'b', which went away, are false"):
        parties.sum()


def signing(folder, parties, *names):
    """Sites that have keys, and hold those of all others."""
    for name in names:
        certs.pair(folder / f"{name}.key")
        parties.identity[name] = Identity(folder / f"{name}.key", folder)
    return parties


def test_sites_that_hold_the_others_keys_sum_with_nobody_else(tmp_path):
    parties = signing(tmp_path / "keys", Parties(tmp_path), *NAMES)
    left, total, _ = parties.sum()
    assert left == list(NAMES) and (total == sum(parties.numbers.values())).all()
    offers = parties.offers()
    (_, seal), (_, mask) = agreement.pair(), agreement.pair()
    swapped = {**offers["b"], "seal": seal.hex(), "mask": mask.hex()}
    for false in (swapped, {**swapped, "signature": ""}, {**swapped, "signature": "zz"}):
        told = asking(parties, "share", "a", members={**offers, "b": false})
        assert "site 'b' has not signed" in told["why"]
    told = asking(parties, "share", "a", members={**offers, "x": swapped})
    assert "no public key of site 'x'" in told["why"]
    assert asking(parties, "share", "a", members=offers)["kind"] == "share"


def test_an_old_signature_is_none(tmp_path):
    """Of another exchange, or for other keys."""
    parties = signing(tmp_path / "keys", Parties(tmp_path, asked={**ASKED, "token": "aa"}), *NAMES)
    old = parties.offers()["b"]
    parties = signing(tmp_path / "keys", Parties(tmp_path), *NAMES)
    offers = parties.offers()
    for false in (old, {**offers["b"], "signature": old["signature"]}):
        told = asking(parties, "share", "a", members={**offers, "b": false})
        assert "site 'b' has not signed" in told["why"]


def test_sites_that_were_sent_different_models_do_not_sum(tmp_path):
    """A server could single out an upload by sending the others something from which none comes."""
    parties = Parties(tmp_path)
    parties.origins["d"] = "11"
    told = asking(parties, "share", "a", members=parties.offers())
    assert "site 'd' was sent another model" in told["why"]


# ---------------------------------------------------------------------------- what lasts, and keys


def test_what_lasts_between_steps_is_for_the_owner_alone_and_goes(tmp_path):
    parties = Parties(tmp_path)
    parties.offers()
    secret = tmp_path / "a" / "secret"
    found = sorted(p.name for p in secret.iterdir())
    assert found == ["pending.json", "upload.safetensors"]
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in secret.iterdir())
    parties.sum()
    assert list(secret.iterdir()) == []


def test_keys_are_of_one_exchange_and_one_pair():
    (one, one_public), (other, other_public) = agreement.pair(), agreement.pair()
    context = Context("ab", 1, "cd")
    common = mask_key(context, one, other_public, "x", "y")
    assert common == mask_key(context, other, one_public, "y", "x")
    for changes in ({"run": "ef"}, {"exchange": 2}, {"token": "ef"}):
        unlike = dataclasses.replace(context, **changes)
        assert mask_key(unlike, one, other_public, "x", "y") != common
    assert mask_key(context, one, other_public, "x", "z") != common


@pytest.mark.parametrize(
    "head",
    [
        {"layout": "other", "keys": OFFER},
        {"layout": "this", "keys": {**OFFER, "mask": "11" * 31}},
        {"layout": "this", "keys": {**OFFER, "mask": 3}},
        {"layout": "this", "keys": {"seal": "00" * 32, "mask": "11" * 32}},
        {"layout": "this", "keys": {**OFFER, "signature": 3}},
        {"layout": "this", "keys": {**OFFER, "signature": "0" * 1000}},
        {"layout": "this"},
    ],
)
def test_what_is_no_offer_is_refused(head):
    assert offer_of({"layout": "this", "keys": OFFER}, "this") == {**OFFER, "signature": ""}
    with pytest.raises(Rejected):
        offer_of(head, "this")
