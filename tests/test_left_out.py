"""Clients that come to NaN or infinity are left out of a round by name, and poison nothing."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import fedshift as fs
from fedshift import checkpoint, tree
from fedshift.errors import BadRun
from fedshift.federation import Samples
from fedshift.hparam import hp
from fedshift.method import Method, Report, Stage, State
from fedshift.methods.fedbn import FedBN
from fedshift.methods.local import Local
from fedshift.methods.scaffold import Scaffold
from fedshift.run import Run
from tests.methods.test_battery import start, state
from tests.toys import federation, largest_difference

ENGINES = ["loop", "stacked"]
PROTOCOL = fs.Protocol(
    rounds=3, epochs=1, batch=5, lr=0.1, momentum=0.9, reset_optimizer=False, weights="samples"
)
ROUND = 1  # counted from 0: the second


@dataclass(frozen=True)
class Poison(Method):
    """Gradients of some clients become NaN in one round."""

    name: ClassVar[str] = "poison"
    clients: str = hp("b", "who")

    def broadcast(self, server, client, round):
        return State({}, {"bad": float(client in self.clients and round == ROUND)})

    def correct(self, grads, params, ctx):
        bad = ctx.received["bad"] > 0
        return {n: torch.where(bad, torch.nan, g) for n, g in grads.items()}


def warned(method, engine, **options):
    """A run, and what it warned of."""
    heard = []
    run = start(
        method, options.pop("protocol", PROTOCOL), engine=engine, warn=heard.append, **options
    )
    assert run.engine_name == engine
    return run.play(), [h for h in heard if "NaN" in h]


class Absent(Run):
    """A run in which a client stays away in the round of the poison."""

    def _participants(self, stage, round):
        names = super()._participants(stage, round)
        return [n for n in names if not (n == "b" and round == ROUND)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bases", [(), (Scaffold(),), (FedBN(), Scaffold())], ids=len)
def test_it_is_as_if_the_client_had_not_taken_part(engine, bases, monkeypatch):
    monkeypatch.setattr("tests.methods.test_battery.Run", Run)
    method = fs.compose.Composed.of(*bases, Poison())
    run, heard = warned(method, engine)
    assert heard == [
        "client 'b' has NaN or infinite values in round 2 and is left out of it: look at its data, "
        "lower the learning rate, or clip gradients"
    ]
    monkeypatch.setattr("tests.methods.test_battery.Run", Absent)
    without, silence = warned(method, engine)
    assert silence == []
    assert tree.finite(state(run))
    if engine == "loop":
        assert tree.digest(state(run)) == tree.digest(state(without))
    else:  # a product of three clients' matrices may round otherwise than one of two
        assert largest_difference(state(run), state(without)) < 1e-12
    marks = [line["left_out"] for line in run.lines if line["client"] is None]
    assert marks == [{}, {"b": "not finite"}, {}]
    second = next(i for i in run.lines if i["round"] == 2 and i["client"] == "b")
    assert second["loss"] is None and second["bytes_up"] > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_what_it_keeps_is_as_before(engine):
    method = FedBN() + Scaffold() + Poison()
    kept = []
    run = start(method, PROTOCOL, engine=engine)
    run.play(lambda run, line: kept.append(tree.digest(run.progress.kept["b"])))
    assert kept[0] == kept[1] != kept[2]


@dataclass(frozen=True)
class LocalPoison(Poison):
    """The same where nothing is sent at all."""

    name: ClassVar[str] = "local-poison"
    scope = Local.scope


@pytest.mark.parametrize("engine", ENGINES)
def test_where_nothing_is_sent_what_is_kept_counts(engine):
    run, heard = warned(LocalPoison(), engine)
    assert len(heard) == 1 and heard[0].startswith("client 'b'")
    assert tree.finite(state(run))


@pytest.mark.parametrize("engine", ENGINES)
def test_statistics_that_overflow_count(engine):
    """Pictures of 1e25 have a variance beyond float32; all that FedBN sends stays finite."""
    fed = federation()
    b = fed["b"]
    huge = dataclasses.replace(b, train=Samples(1e25 * b.train.x, b.train.y))
    fed = dataclasses.replace(fed, clients=(fed["a"], huge, fed["c"]))
    heard = []
    run = Run(
        fed,
        "fedbn",
        PROTOCOL.replace(reset_optimizer=True),
        "tests.toys:ToyNet",
        engine=engine,
        workers=1,
        device="cpu",
        warn=heard.append,
    ).play()
    assert [h.split("'")[1] for h in heard if "NaN" in h] == ["b"] * 3
    assert tree.finite(state(run)) and not any(
        n.startswith("model/") for n in run.progress.kept["b"]
    )


@dataclass(frozen=True)
class TunedPoison(Poison):
    """A stage behind training whose result clients keep."""

    name: ClassVar[str] = "tuned-poison"

    def stages(self, protocol):
        return (Stage("train", 1), Stage("tune", 2, "tune"))


@pytest.mark.parametrize("engine", ENGINES)
def test_in_a_stage_of_tuning(engine):
    run, heard = warned(TunedPoison(), engine)
    assert len(heard) == 1 and "'b'" in heard[0] and tree.finite(state(run))


@dataclass(frozen=True)
class Lowest(Method):
    """What a method keeps for itself may be infinite, but no NaN."""

    name: ClassVar[str] = "lowest"
    spoilt: bool = hp(False, "whether NaN is kept")

    def init_client(self, params, facts):
        return State({"low": torch.tensor(torch.inf)})

    def report(self, ctx, net, data):
        value = torch.nan if self.spoilt else torch.inf
        return Report(keep={"low": torch.full_like(ctx.kept["low"], value)})


@pytest.mark.parametrize("engine", ENGINES)
def test_infinities_of_a_methods_own(engine):
    assert warned(Lowest(), engine)[1] == []
    with pytest.raises(BadRun, match="every client has NaN"):
        warned(Lowest(spoilt=True), engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("checkpoint_every", [1, 3])
def test_if_all_are_the_run_stops_with_the_last_good_state(engine, checkpoint_every, tmp_path):
    method, good = Scaffold() + Poison("abc"), []
    run = start(method, PROTOCOL, engine=engine, out=tmp_path, checkpoint_every=checkpoint_every)
    with pytest.raises(BadRun) as caught:
        run.play(lambda run, line: good.append(tree.digest(state(run))))
    assert str(caught.value) == (
        "every client has NaN or infinite values in round 2: lower the learning rate (--lr) or "
        f"clip gradients (--clip); the state before that round is in {tmp_path}"
    )
    saved = checkpoint.load(tmp_path / "checkpoint", run._folder.fingerprint)
    assert saved.done == 1 and tree.finite(saved.server.model)
    again = Run.resume(tmp_path, federation(), run.spec, method, warn=lambda message: None)
    assert [tree.digest(state(again))] == good
    assert [line["round"] for line in again.lines] == [1] * 4


@dataclass(frozen=True)
class BadServer(Method):
    """A server whose own step overflows."""

    name: ClassVar[str] = "bad-server"

    def init_server(self, params, facts):
        return State({}, {"round": 0})

    def server_step(self, old, new, server):
        now = server.numbers["round"]
        factor = torch.inf if now == ROUND else 1.0
        return {n: t * factor for n, t in new.items()}, State({}, {"round": now + 1})


def test_a_server_that_overflows_stops_before_it_saves(tmp_path):
    run = start(BadServer(), PROTOCOL, out=tmp_path)
    with pytest.raises(BadRun, match=r"the server's model has NaN .* in round 2: lower"):
        run.play()
    saved = checkpoint.load(tmp_path / "checkpoint", run._folder.fingerprint)
    assert saved.done == 1 and tree.finite(saved.server.model)
