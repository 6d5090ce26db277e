"""Several methods as one: orders, sums, chains, and what is refused with both names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import nn

import fedshift as fs
from fedshift.compose import Composed
from fedshift.errors import BadValue, CannotCombine
from fedshift.hparam import hp
from fedshift.method import Method, Phase, Report, Scope, Stage, State
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.fedprox import FedProx
from fedshift.methods.mixup import Mixup
from tests.methods.quadratic import Number, Quadratic, clients
from tests.methods.test_battery import PROTOCOL, start
from tests.toys import federation


def named(name: str, **hooks) -> Method:
    """A method made of the given hooks and attributes."""
    return dataclass(frozen=True)(type(name, (Method,), {"name": name, **hooks}))()


# -- what a whole is -----------------------------------------------------------------------------


def test_sums_are_flat_and_fedavg_vanishes():
    whole = FedAvg() + FedProx() + (Mixup() + FedAvg())
    assert whole.name == "fedprox+mixup" and isinstance(whole, Composed)
    assert Composed.of(FedAvg(), Method()).name == "fedavg"
    assert Composed.of(Mixup(), FedProx()).name == "mixup+fedprox"


def test_the_view_is_personal_as_soon_as_one_says_so():
    views = [(FedProx() + m).view for m in (Mixup(), fs.methods.FedBN(), fs.methods.PFedAvg())]
    assert views == ["global", "personal", "personal"]
    assert not (FedProx() + named("loopy", stackable=False)).stackable


def test_a_method_without_a_name_is_not_taken_for_fedavg():
    nameless = dataclass(frozen=True)(
        type("Mine", (Method,), {"loss": lambda self, out, y, ctx, net: {}})
    )()
    for build in (lambda: Composed.of(nameless), lambda: nameless + Mixup()):
        with pytest.raises(BadValue, match=r"'Mine' is named 'fedavg'.*of its own"):
            build()
    for taken in ("model", "a/b", "a+b"):
        with pytest.raises(BadValue, match="cannot be"):
            Composed.of(named(taken))


# -- declarations --------------------------------------------------------------------------------


def attach(name: str):
    def build(self, model, facts):
        model.add_module(name, nn.Linear(1, 1 + len(list(model.children()))))
        return model

    return build


def test_builds_run_in_order():
    a, b = named("a", build=attach("first")), named("b", build=attach("second"))
    widths = []
    for whole in (a + b, b + a):
        model = whole.build(Number(), None)
        widths.append((model.first.out_features, model.second.out_features))
    assert widths == [(3, 4), (4, 3)]


@pytest.mark.parametrize(
    ("shares", "strictest"),
    [
        (("both", "both"), "both"),
        (("both", "down"), "down"),
        (("up", "both"), "up"),
        (("up", "kept"), "kept"),
        (("up", "down"), "kept"),
        (("kept", "both"), "kept"),
    ],
)
def test_the_strictest_scope_wins(shares, strictest):
    a, b = (named(n, scope=lambda self, name, m, s=s: Scope(s)) for n, s in zip("ab", shares))
    assert (a + b).scope("w", None).share == (b + a).scope("w", None).share == strictest


def test_groups():
    a, b, plain = (
        named(n, scope=lambda self, name, m, g=g: Scope(group=g))
        for n, g in (("a", "critic"), ("b", "generator"), ("plain", "model"))
    )
    assert (plain + a).scope("w", None).group == "critic"
    with pytest.raises(CannotCombine, match="'a' and 'b' both want to train 'w'"):
        (a + b).scope("w", None)


def phased(name: str, *phases: Phase) -> Method:
    return named(name, phases=lambda self: phases)


def test_phases_of_one_name_fuse_where_the_first_stood():
    a = phased("a", Phase("up", ("critic",), ("gap",), sign=-1), Phase("model", terms=("*", "gap")))
    b = phased(
        "b", Phase("model", ("model", "head"), ("*", "own"), train_mode=("head",)), Phase("last")
    )
    found = (a + b).phases()
    assert [p.name for p in found] == ["up", "model", "last"]
    assert found[0] == a.phases()[0]
    assert found[1] == Phase(
        "model", ("model", "head"), ("*", "gap", "own"), train_mode=("model", "head")
    )
    assert [p.name for p in (b + a).phases()] == ["model", "last", "up"]
    # who says nothing of phases changes none
    assert (FedProx() + a + Mixup()).phases() == a.phases()
    assert (FedProx() + Mixup()).phases() == (Phase(),)


@pytest.mark.parametrize(
    "change", [{"sign": -1.0}, {"every": 2}, {"lr": 0.1}, {"optimizer": "adam"}, {"together": True}]
)
def test_phases_that_disagree(change):
    ours = phased("ours", Phase("model", terms=("*", "ours")))
    theirs = phased("theirs", replace(Phase("model"), **change))
    with pytest.raises(
        CannotCombine, match=f"'ours' and 'theirs'.*'model', with different {next(iter(change))}"
    ):
        (ours + theirs).phases()
    # a phase that says nothing agrees with any, whichever comes first
    plain = phased("plain", Phase("model"))
    for whole in (plain + theirs, theirs + plain):
        (found,) = whole.phases()
        assert getattr(found, next(iter(change))) == next(iter(change.values()))


def staged(name: str, *stages: Stage) -> Method:
    return named(name, stages=lambda self, protocol: stages)


def test_stages_stand_before_and_behind_training():
    first, last = Stage("look", 1, "collect"), Stage("tune", 2, "tune", everyone=True)
    short = Stage("train", 3)
    a, b = staged("a", first, short), staged("b", short, last)
    assert (b + a).stages(PROTOCOL) == (first, short, last)
    # one that says nothing of stages does not bring the protocol's back
    assert (a + Mixup()).stages(PROTOCOL) == (Mixup() + a).stages(PROTOCOL) == (first, short)
    assert (a + staged("c", first, short)).stages(PROTOCOL) == (first, short)
    assert (FedProx() + Mixup()).stages(PROTOCOL) == (Stage("train", PROTOCOL.rounds),)
    for other in (Stage("look", 2, "collect"), Stage("train", 4)):
        with pytest.raises(
            CannotCombine, match=f"'a' and 'd' both declare the stage '{other.name}'"
        ):
            (a + staged("d", other)).stages(PROTOCOL)


# -- what only one can have ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hook", "deed"),
    [
        ("gradient", "replace the gradient"),
        ("weights", "weight the clients"),
        ("server_step", "replace the server's step"),
        ("predict", "replace the prediction"),
    ],
)
def test_only_one(hook, deed):
    a, b = (named(n, **{hook: lambda *args: None}) for n in ("one", "other"))
    with pytest.raises(CannotCombine, match=f"'one' and 'other' both {deed}"):
        a + b
    assert (a + Mixup()).has(hook) and not (FedProx() + Mixup()).has(hook)


def test_twice_the_same():
    with pytest.raises(CannotCombine, match="'mixup' stands twice in 'mixup\\+fedprox\\+mixup'"):
        Mixup() + FedProx() + Mixup(alpha=1.0)


def test_two_losses_of_one_name():
    a, b = (
        named(n, loss=lambda self, out, y, ctx, net: {"task": out.logits.sum()}) for n in ("a", "b")
    )
    with pytest.raises(CannotCombine, match="'a' and 'b' both give the loss term 'task'"):
        start(a + b).play()


def test_two_rules_for_one_tensor():
    def rule(wanted):
        return lambda self, name, stacked, weights: stacked[0] if name == wanted else None

    a, b, c = (
        named(n, combine=rule(w)) for n, w in (("a", "head.bias"), ("b", "head.bias"), ("c", "x"))
    )
    with pytest.raises(CannotCombine, match=r"'a' and 'b' both combine 'head.bias'"):
        start(a + b).play()
    run = start(a + c, PROTOCOL.replace(rounds=1))
    assert torch.equal((a + c).combine("head.bias", torch.arange(2.0), None), torch.tensor(0.0))
    assert (a + c).combine("head.weight", torch.arange(2.0), None) is None
    assert run.play().progress.done == 1


# -- chains --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Twice(Method):
    name: ClassVar[str] = "twice"

    def correct(self, grads, params, ctx):
        return {n: 2 * g for n, g in grads.items()}


@dataclass(frozen=True)
class Plus(Method):
    name: ClassVar[str] = "plus"

    def correct(self, grads, params, ctx):
        return {n: g + 10 for n, g in grads.items()}


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize(("whole", "gradient"), [(Twice() + Plus(), 12), (Plus() + Twice(), 22)])
def test_corrections_chain_in_order(engine, whole, gradient):
    """A slope of 1 through "twice" and "plus": 2 + 10, or 2 * 11."""
    fed = clients((0, 0, 1))
    protocol = fs.Protocol(rounds=1, steps=1, batch=1, lr=1)
    run = fs.Run(
        fed, Quadratic() + whole, protocol, Number, dtype="float64", device="cpu", engine=engine
    )
    assert run.play().progress.server.model["body.weight"].item() == -gradient


def test_corrections_come_behind_the_sign():
    """An ascending phase on a slope of 1: the gradient is -1, plus 10."""
    up = phased("up", Phase("model", sign=-1))
    protocol = fs.Protocol(rounds=1, steps=1, batch=1, lr=1)
    whole = Quadratic() + up + Plus()
    run = fs.Run(clients((0, 0, 1)), whole, protocol, Number, dtype="float64", device="cpu").play()
    assert run.progress.server.model["body.weight"].item() == -9


# -- each sees only what is its own --------------------------------------------------------------


@dataclass(frozen=True)
class Counter(Method):
    """Counts under names that the other one uses too."""

    name: ClassVar[str] = "counter"
    step: float = hp(1.0, "what a round adds to the count")

    def init_server(self, params, facts):
        return State({"n": torch.zeros((), dtype=torch.float64)})

    def init_client(self, params, facts):
        return State({"n": torch.zeros((), dtype=torch.float64)})

    def broadcast(self, server, client, round):
        return server

    def report(self, ctx, net, data):
        assert set(ctx.kept) == set(ctx.received) == {"n"}
        return Report(
            mean={"n": ctx.received["n"] + self.step}, keep={"n": ctx.kept["n"] + self.step}
        )

    def after(self, new, uploads, server, net, key):
        assert set(uploads.extras) == {"n"}
        return new, State({"n": uploads.combined["n"]})


@dataclass(frozen=True)
class Other(Counter):
    name: ClassVar[str] = "other"


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_states_uploads_and_kept_are_apart(engine):
    run = start(
        Counter(step=1.0) + Other(step=10.0), PROTOCOL.replace(rounds=3), engine=engine
    ).play()
    counts = {m: s.tensors["n"].item() for m, s in run.progress.server.methods.items()}
    assert counts == {"counter": 3.0, "other": 30.0}
    assert run.progress.kept["a"]["counter/n"] == 3 and run.progress.kept["a"]["other/n"] == 30


DRAWN: dict[str, list[float]] = {"first": [], "second": []}


def test_draws_are_apart():
    def draw(self, x, y, ctx):
        DRAWN[self.name].append(fs.keys.uniform(ctx.key).item())
        return x, y

    a, b = named("first", batch=draw), named("second", batch=draw)
    start(a + b, PROTOCOL.replace(rounds=1), fed=federation((9,))).play()
    alone = dict(DRAWN)
    assert len(set(alone["first"] + alone["second"])) == 4, "2 steps of 2 methods"
    DRAWN["first"] = []
    start(a, PROTOCOL.replace(rounds=1), fed=federation((9,))).play()
    assert DRAWN["first"] == alone["first"], "what stands beside a method does not change its draws"


@pytest.mark.parametrize(
    "text",
    ["fedprox+mixup", "fedbn+fedprox+mixup", "scaffold+fedprox", "local+mixup", "fedbn+pfedavg"],
)
def test_compositions_agree_over_engines_and_orders(text):
    """The sums that these are do not depend on the order."""
    from tests.methods.test_battery import state
    from tests.toys import largest_difference

    protocol = PROTOCOL.replace(rounds=1)
    loop = start(text, protocol).play()
    turned = start("+".join(text.split("+")[::-1]), protocol, engine="stacked").play()
    assert largest_difference(state(loop), state(turned)) < 1e-9
