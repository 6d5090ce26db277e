"""What sites must not send is refused and named, and the honest majority's model is unchanged."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil

import pytest
import torch

import fedshift as fs
from fedshift import tree
from fedshift.engines.flower import codec, roll
from fedshift.engines.flower.codec import Packet
from fedshift.engines.flower.site import Site
from fedshift.errors import BadData, BadRun, BadValue
from tests.engines.flower.sites import (
    InProcess,
    elsewhere,
    kept_at,
    resumed,
    serve,
    sites_of,
)
from tests.methods.test_battery import PROTOCOL, start
from tests.toys import ToyNet, federation

ROUND = 2  # the exchange that is spoilt, counted from 1


def piece(packet: Packet, name: str, **changes) -> Packet:
    changed = dataclasses.replace(packet.pieces[name], **changes)
    return dataclasses.replace(packet, pieces={**packet.pieces, name: changed})


def head(packet: Packet, **changes) -> Packet:
    return dataclasses.replace(packet, head=json.dumps({**json.loads(packet.head), **changes}))


def without(packet: Packet, name: str) -> Packet:
    return dataclasses.replace(packet, pieces={n: p for n, p in packet.pieces.items() if n != name})


def nan(packet: Packet) -> Packet:
    return tensor(packet, "model/head.bias", torch.tensor([0.0, torch.nan, 0.0]).double())


def tensor(packet: Packet, name: str, value: torch.Tensor) -> Packet:
    (one,) = codec.encode(codec.Message({}, {name: value})).pieces.values()
    return dataclasses.replace(packet, pieces={**packet.pieces, name: one})


W = "model/head.weight"
SPOILT = {
    "NaN": (nan, "not finite"),
    "infinity": (
        lambda p: tensor(p, "extra/scaffold/head.bias", torch.full((3,), torch.inf).double()),
        "not finite",
    ),
    "wrong shape": (lambda p: tensor(p, W, torch.zeros(8, 3).double()), "has shape [8, 3]"),
    "wrong type": (lambda p: tensor(p, W, torch.zeros(3, 8)), "has type float32"),
    "unknown name": (lambda p: tensor(p, "model/evil", torch.zeros(1)), "holds 'model/evil'"),
    "a missing name": (lambda p: without(p, W), f"lacks '{W}'"),
    "too few bytes": (lambda p: piece(p, W, data=b"1234"), "4 bytes"),
    "a pickle": (
        lambda p: piece(p, W, dtype="numpy.ndarray", data=pickle.dumps(print)),
        "type numpy.ndarray",
    ),
    "a pickle as head": (
        lambda p: dataclasses.replace(p, head=pickle.dumps({"kind": "trip"}).decode("latin1")),
        "not JSON",
    ),
    "too much": (
        lambda p: piece(p, W, shape=(1 << 20,), data=bytes(8 << 20)),
        "has shape [1048576]",
    ),
    "another round's answer": (lambda p: head(p, exchange=0), "late, or was sent before"),
    "an old token": (lambda p: head(p, token="0" * 16), "late, or was sent before"),
    "another run's answer": (lambda p: head(p, run="0" * 32), "late, or was sent before"),
    "another's name": (lambda p: head(p, site="a"), "speaks for site 'a'"),
    "made-up samples": (lambda p: head(p, samples=10**9), "at first it had 9"),
    "no samples": (lambda p: head(p, samples="many"), "number of samples is none"),
    "text for losses": (lambda p: head(p, losses={"task": "low"}), "losses are no numbers"),
    "text for scores": (lambda p: head(p, scores={"test": "high"}), "scores are no numbers"),
    "silence": (lambda p: None, "no answer in time"),
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """The run in which site b is away in the spoilt round."""

    def away(site, exchange, answer):
        return None if (site, exchange) == ("b", ROUND) else answer

    return serve("scaffold", tmp_path_factory.mktemp("honest"), change=away).play()


@pytest.mark.parametrize("what", SPOILT)
def test_it_is_as_if_the_site_had_been_away(what, honest, tmp_path):
    spoil, reason = SPOILT[what]
    warned: list[str] = []

    def change(site, exchange, answer):
        return spoil(answer) if (site, exchange) == ("b", ROUND) else answer

    run = serve("scaffold", tmp_path, change=change, warn=warned.append).play()
    assert tree.digest(run.progress.server.model) == tree.digest(honest.progress.server.model)
    for method, state in run.progress.server.methods.items():
        theirs = honest.progress.server.methods[method]
        assert tree.digest(dict(state.tensors)) == tree.digest(dict(theirs.tensors))
    rounds = [line for line in run.lines if line["client"] is None]
    assert list(rounds[0]["left_out"]) == [] and list(rounds[1]["left_out"]) == ["b"]
    assert reason in rounds[1]["left_out"]["b"]
    if reason == "not finite":
        assert any("'b'" in w for w in warned)


def test_a_replayed_upload_counts_once(tmp_path):
    seen: dict[str, Packet] = {}

    def replay(site, exchange, answer):
        if site == "b" and exchange == 1:
            seen["first"] = answer
        return seen["first"] if (site, exchange) == ("b", ROUND) else answer

    run = serve("fedavg", tmp_path, change=replay).play()
    rounds = [line for line in run.lines if line["client"] is None]
    assert "sent before" in rounds[1]["left_out"]["b"]


def test_a_site_that_fails_says_why_and_comes_back(tmp_path):
    fed = federation()
    makers = sites_of(fed, tmp_path)
    whole = makers["b"]

    class Failing:
        def answer(self, packet):
            site = whole()
            site._load = lambda: 1 / 0
            return site.answer(packet)

    carrier = InProcess(makers)
    view = serve("fedavg", tmp_path, carrier=carrier)
    ask = carrier.ask

    def failing_once(packets, seconds):
        carrier.sites["b"] = Failing if carrier.exchanges == 1 else whole
        return ask(packets, seconds)

    carrier.ask = failing_once
    view.play()
    left = [line["left_out"] for line in view.lines if line["client"] is None]
    assert left[0] == {} and "ZeroDivisionError" in left[1]["b"]
    b = [line for line in view.lines if line["client"] == "b"]
    assert [line["loss"] is None for line in b] == [False, True]


def test_fewer_than_must_stop_the_run_and_nothing_saved_is_lost(tmp_path):
    def two_away(site, exchange, answer):
        return None if site in "bc" and exchange == 3 else answer

    protocol = PROTOCOL.replace(rounds=3)
    out = tmp_path / "server"
    run = serve("fedbn", tmp_path / "sites", protocol, change=two_away, out=out, min_sites=2)
    with pytest.raises(BadRun) as stopped:
        run.play()
    assert "1 of 3 sites took part in round 3 of 'train'" in str(stopped.value)
    assert "'b': no answer in time" in str(stopped.value)
    assert run.progress.done == 2
    again = resumed(run, tmp_path / "sites", out).play()
    whole = serve("fedbn", tmp_path / "whole", protocol).play()
    assert tree.digest(again.progress.server.model) == tree.digest(whole.progress.server.model)


def test_a_site_that_lost_its_disk_begins_anew_and_says_so(tmp_path):
    warned: list[str] = []

    def lose(site, exchange, answer):
        if (site, exchange) == ("b", 1):
            shutil.rmtree(tmp_path / "b")
        return answer

    run = serve("fedbn+scaffold", tmp_path, change=lose, warn=warned.append).play()
    assert any("'b' has lost what it kept" in w for w in warned)
    rounds = [line for line in run.lines if line["client"] is None]
    assert all(line["left_out"] == {} for line in rounds)
    assert any("'b'" in w for w in rounds[1]["warnings"])


@pytest.mark.parametrize("name", ["fedbr", "fedlsi"])
def test_once_only_payloads_are_sent_again(name, tmp_path):
    """To a site that was away when they were handed out, and to one that lost its disk since."""
    whole = serve(name, tmp_path / "whole").play()
    stages = [s.name for s in whole.stages]
    handing = stages.index({"fedbr": "fedbr-send", "fedlsi": "translator"}[name]) + 1
    wanted = {"fedbr": "fedbr/pseudo", "fedlsi": "fedlsi/domain"}[name]

    def away(site, exchange, answer):
        if (site, exchange) == ("a", handing):
            return None
        if (site, exchange) == ("b", handing):
            shutil.rmtree(tmp_path / "some" / "b")
        return answer

    run = serve(name, tmp_path / "some", change=away).play()
    for site in "ab":
        assert torch.equal(
            kept_at(tmp_path / "some", site)[wanted], kept_at(tmp_path / "whole", site)[wanted]
        )
    # nothing else was lost with these methods, so that it comes to the same
    assert tree.digest(run.progress.server.model) == tree.digest(whole.progress.server.model)


def test_policy_lets_go_only_what_is_allowed(tmp_path):
    def left_out(name, *allow):
        fed, state = federation(), tmp_path / name / "-".join(allow)
        makers = sites_of(fed, state)
        makers["b"] = lambda: Site("b", lambda: fed, state / "b", allow=allow)
        run = serve(name, state, fed=fed, carrier=InProcess(makers)).play()
        return [line["left_out"] for line in run.lines if line["client"] is None]

    assert left_out("fedfa", "parameters", "statistics") == [{}, {}]
    told = left_out("fedbr", "parameters", "statistics")
    assert "'fedbr/means' would leave as averaged data" in told[0]["b"]
    assert "allows parameters, statistics" in told[0]["b"] and "a" not in told[0]
    for left in left_out("fedavg", "statistics"):
        assert "of the model would leave as parameters" in left["b"]
    silent = Site("b", federation, tmp_path / "silent", allow=["parameters"])
    with pytest.raises(codec.Rejected, match="numbers of samples would leave as statistics"):
        roll.read("b", silent.answer(roll.question()))


def test_sites_that_disagree_are_named(tmp_path):
    fed = federation()
    other = dataclasses.replace(fed, classes=("x", "y", "q"))
    makers = sites_of(fed, tmp_path)
    makers["b"] = sites_of(other, tmp_path)["b"]
    with pytest.raises(BadData, match=r"disagree on the classes.*'a' has.*'b' has"):
        elsewhere(fed, InProcess(makers))
    assert roll.federation("f", ["a"], {"a": sites_of(fed, tmp_path)["a"]().describe()}, {})


def test_what_cannot_run_elsewhere_is_refused(tmp_path):
    with pytest.raises(BadValue, match="'centralized' trains on everybody's data"):
        start("centralized", engine="flower")
    with pytest.raises(BadValue, match="hold_out needs"):
        start("fedavg", engine="flower", hold_out=["a"])
    with pytest.raises(BadValue, match="checkpoint_every is 2"):
        start("fedavg", engine="flower", checkpoint_every=2)
    with pytest.raises(BadValue, match="lives in this process alone"):
        fs.Run(federation(), "fedavg", PROTOCOL, lambda: ToyNet(), engine="flower")
