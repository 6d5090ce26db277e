"""What is written down is what crossed, and what the server needs of it is found by trying."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import pytest
import torch

import fedshift as fs
from fedshift import methods
from fedshift.method import Method, Report, State
from fedshift.wire import observe
from fedshift.wire.observe import PROTOCOL, shortened
from tests.methods.test_battery import ALL
from tests.toys import ToyNet, federation

TOY = federation()


def seen(method, **options):
    made = methods.make(method) if isinstance(method, str) else method
    return observe(made, TOY, ToyNet, **options)


@pytest.mark.parametrize("name", ALL)
def test_it_adds_up_to_what_a_run_counts(name):
    """`metrics.jsonl` counts bytes in another place, without looking at single tensors."""
    wire = seen(name)
    method = methods.make(name, wire.settings)
    if method.pooled:
        pytest.skip("hands its data over, which a run does not count")
    run = fs.Run(TOY, method, PROTOCOL, ToyNet, engine="loop", workers=1, device="cpu").play()
    lines = [line for line in run.lines if line["client"] == "a"]
    places = [(s.name, k) for s in wire.stages for k in range(1, s.rounds + 1)]
    assert len(lines) == len(places)
    for line, (stage, k) in zip(lines, places):
        for way in ("down", "up"):
            items = [i for i in wire.select(way, stage) if k in i.rounds]
            assert sum(i.bytes for i in items) == line[f"bytes_{way}"], (stage, k, way)


@pytest.mark.parametrize("name", ALL)
def test_whose_server_looks_at_single_models(name):
    single = {"fedcm", "fedgenp", "fedlsi", "importance", "feddg-ga", "fedensemble", "fedgen"}
    wire = seen(name)
    uses = {i.use for i in wire.select("up", of_model=True)}
    if name in ("local", "centralized", "fedproto"):
        assert not uses
    else:
        assert uses == ({"individual"} if name in single else {"mean"})
    assert "number of samples" not in {i.name for i in wire.items}


@dataclasses.dataclass(frozen=True)
class Median(Method):
    name = "median"

    def combine(self, name, stacked, weights):
        return stacked.median(dim=0).values


@dataclasses.dataclass(frozen=True)
class BySize(Method):
    name = "by-size"

    def weights(self, uploads, server):
        return uploads.samples


@dataclasses.dataclass(frozen=True)
class Asks(Method):
    """Looks at what it does not use."""

    name = "asks"

    def after(self, new, uploads, server, net, key):
        assert uploads.samples.sum() > 0 and all(t.isfinite().all() for t in uploads.model.values())
        return new, server


def test_what_a_server_needs_is_what_changes_its_step():
    def of(method):
        wire = seen(method)
        (use,) = {i.use for i in wire.select("up", of_model=True)}
        return use, "number of samples" in {i.name for i in wire.select("up")}

    assert of(Median()) == ("individual", False)
    assert of(BySize()) == ("individual", True)  # a mean, but not the plain one
    assert of(Asks()) == ("mean", False)


@dataclasses.dataclass(frozen=True)
class Sends(Method):
    """Uploads of every kind, and one of them is declared."""

    name = "sends"
    content: ClassVar = {"faces": "averaged data"}

    def report(self, ctx, net, data):
        t = torch.ones(2, 3, dtype=ctx.lr.dtype)
        return Report({"faces": t}, {"total": t[0, 0]}, {"norm.running_mean": t[0]}, {"mine": t})


def test_kinds_and_uses_of_uploads():
    items = {i.name: i for i in seen(Sends()).items if not i.of_model}
    found = {n: (i.way, i.kind, i.use, i.shape, i.bytes) for n, i in items.items()}
    assert found == {
        "sends/faces": ("up", "averaged data", "mean", (2, 3), 24),
        "sends/total": ("up", "number", "sum", (), 4),
        "sends/norm.running_mean": ("up", "statistics", "individual", (3,), 12),
        "sends/mine": ("kept", "state", "", (2, 3), 24),
    }


@dataclasses.dataclass(frozen=True)
class Hands(Method):
    """Payloads that are the same for all, differ in one tensor, or go to one client alone."""

    name = "hands"

    def broadcast(self, server, client, round):
        mine = torch.full((2,), float(ord(client)))
        found = {"all/w": torch.ones(3), "net/w": mine, "net/b": torch.zeros(1)}
        return State(
            found | ({"only/w": mine} if client == "a" else {}), {"n": 1, "k": ord(client)}
        )


def test_who_gets_what():
    found = {i.name: (i.use, i.kind) for i in seen(Hands()).select("down", of_model=False)}
    assert found == {
        "hands/all/w": ("alike", "parameters"),
        "hands/net/w": ("own", "parameters"),
        "hands/net/b": ("own", "number"),
        "hands/only/w": ("own", "parameters"),
        "hands/n": ("alike", "number"),
        "hands/k": ("own", "number"),
    }


def test_what_stays_never_crosses():
    wire = seen("fedbn")
    norms = {i.name for i in wire.select("kept")}
    assert norms == {n for n in dict(ToyNet().state_dict()) if n.startswith("conv.1.")}
    assert not norms & {i.name for way in ("up", "down") for i in wire.select(way)}
    kinds = {i.name.rpartition(".")[2]: i.kind for i in wire.select("kept")}
    assert kinds["weight"] == "parameters" and kinds["running_var"] == "statistics"


def test_the_network_is_told_from_what_a_method_attaches_and_moves():
    """FedLSI puts the head behind a norm of its own, FRAug trains networks beside the model."""
    wire = seen("fedlsi")
    head = {i.name: i.of_model for i in wire.select("up", "train") if i.name.startswith("head.")}
    assert head["head.layer.weight"] and not head["head.norm.running_mean"]
    plain = sum(t.numel() * t.element_size() for t in ToyNet().state_dict().values())
    assert wire.bytes("down", of_model=True) == plain
    assert {i.name.split(".")[0] for i in seen("fraug").select("down", of_model=False)} == {
        "fraug_generator"
    }


def test_rounds_in_which_something_crosses():
    histogram = [i for i in seen("fedfa-h").select("down") if i.name.endswith("/histogram")]
    assert [i.rounds for i in histogram] == [(2,)]
    tune = methods.make("pfedavg", {"tune": 3})
    model = seen(tune).select("down", "tune")
    assert model and {i.rounds for i in model} == {(1,)}


def test_pooled_data_are_handed_over():
    wire = seen("centralized")
    inputs, labels = wire.items
    assert inputs.shape == (17, 1, 6, 6) and inputs.bytes == 17 * 36 * 8
    assert labels.kind == "raw data" and wire.pooled


def test_only_durations_are_shortened_and_only_where_nobody_chose_them():
    method = methods.make("fedlsi")
    short = shortened(method)
    assert short["fedlsi.gan_steps"] == 1 and "fedlsi.gan_hidden" not in short
    assert "fedlsi.gan_steps" not in shortened(method, keep=["fedlsi.gan_steps"])
    two = methods.make("fedgenp", {"gen_steps": 2})
    assert seen(two, keep=["fedgenp.gen_steps"]).settings == {}


def test_the_world_stays_as_it_was():
    before = torch.get_rng_state(), torch.get_num_threads()
    seen("fraug")
    assert torch.equal(torch.get_rng_state(), before[0]) and torch.get_num_threads() == before[1]


def test_as_plain_values():
    found = seen("fedfa").to_dict()
    assert set(found) == {
        "method", "data", "model", "clients", "settings", "stages", "items", "pooled"
    }  # fmt: skip
    assert set(found["items"][0]) == {
        "way", "name", "shape", "bytes", "kind", "use", "stage", "rounds", "of_model"
    }  # fmt: skip
    (train,) = found["stages"]
    assert train["bytes_up"] == sum(i["bytes"] for i in found["items"] if i["way"] == "up")
