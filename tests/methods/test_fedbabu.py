"""FedBABU: a head that nothing moves, a body with FedAvg's gradient, a tuning that stays home."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

from fedshift import methods
from fedshift.errors import BadModel, CannotCombine
from fedshift.method import Method, Scope
from fedshift.methods.fedbabu import FedBABU
from fedshift.tree import under
from tests.methods.quadratic import ENGINES
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import ToyNet, largest_difference

HARD = {"momentum": 0.9, "weight_decay": 0.1, "reset_optimizer": False}


def head(tensors) -> dict[str, torch.Tensor]:
    return {n: t.clone() for n, t in tensors.items() if n.startswith("head.")}


def body(tensors) -> dict[str, torch.Tensor]:
    return {n: t for n, t in tensors.items() if not n.startswith("head.")}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "protocol",
    [HARD, {"optimizer": "adam", "weight_decay": 0.1}, {"optimizer": "adamw", "weight_decay": 0.1}],
)
def test_the_head_keeps_its_bits(engine, protocol):
    run = start(FedBABU(tune=1, tunes="body"), PROTOCOL.replace(**protocol), engine=engine)
    before = head(run.progress.server.model)
    assert len(before) == 2
    run.play()
    assert largest_difference(before, head(run.progress.server.model)) == 0
    for kept in run.progress.kept.values():
        assert largest_difference(before, head(under("tuned", kept))) == 0
        assert not [n for n in kept if n.startswith("model/head")]


def test_the_first_step_of_the_body_is_fedavgs():
    protocol = PROTOCOL.replace(rounds=1, steps=1, **HARD)
    mine = start(FedBABU(tune=0), protocol).play()
    theirs = start(methods.make("fedavg"), protocol).play()
    one, other = (r.progress.server.model for r in (mine, theirs))
    assert largest_difference(body(one), body(other)) == 0
    assert largest_difference(head(one), head(other)) > 1e-6


@dataclass(frozen=True)
class Frozen(Method):
    """The plain way to the same body: a head that no phase trains."""

    name: ClassVar[str] = "frozen"

    def scope(self, name, module):
        return Scope(group="frozen" if name.startswith("head.") else "model")


@pytest.mark.parametrize("engine", ENGINES)
def test_within_a_trip_the_head_stays_too(engine):
    protocol = PROTOCOL.replace(epochs=2, **HARD)
    runs = [start(m, protocol, engine=engine).play() for m in (FedBABU(tune=0), Frozen())]
    assert largest_difference(*(r.progress.server.model for r in runs)) < 1e-14


@pytest.mark.parametrize(("tunes", "moved"), [("all", (1, 1)), ("head", (0, 1)), ("body", (1, 0))])
def test_what_the_tuning_moves(tunes, moved):
    run = start(FedBABU(tune=2, tunes=tunes), PROTOCOL.replace(rounds=1)).play()
    own = under("tuned", run.progress.kept["a"])
    trained = {n for n, _ in run.plan.model.named_parameters()}
    before = {n: t for n, t in run.progress.server.model.items() if n in trained}
    apart = [
        largest_difference({n: own[n] for n in part}, part) > 1e-6
        for part in (body(before), head(before))
    ]
    assert tuple(map(int, apart)) == moved


def test_the_tuning_never_feeds_back_and_lasts_epochs():
    runs = [start(FedBABU(tune=t), PROTOCOL.replace(steps=3)).play() for t in (0, 1, 2)]
    models = [r.progress.server.model for r in runs]
    assert largest_difference(models[0], models[1]) == largest_difference(models[0], models[2]) == 0
    assert [len({(x["stage"], x["round"]) for x in r.lines}) for r in runs] == [2, 3, 4]
    assert len(runs[0].stages) == 1 and runs[2].stages[1].epochs == 1


def test_only_the_body_travels():
    run = start(FedBABU(tune=0)).play()
    size = sum(t.nbytes for t in body(run.progress.server.model).values())
    assert run.lines[-1]["bytes_up"] == run.lines[-1]["bytes_down"] == 3 * size


def test_a_model_needs_a_head():
    bare = ToyNet()
    bare.head = nn.Identity()
    with pytest.raises(BadModel, match="'fedbabu' treats the head apart"):
        FedBABU().build(bare, None)


def test_there_is_one_final_tuning():
    with pytest.raises(CannotCombine, match="both declare the stage 'tune'"):
        start(methods.make("fedbabu+pfedavg"))


@pytest.mark.parametrize("other", ["mixup", "fedbn", "fedcm", "scaffold", "fedprox", "moon", "fpl"])
def test_compositions_agree_on_both_engines(other):
    beside = methods.make(f"{other}+fedbabu", {"fedbabu.tune": 1})
    runs = [start(beside, engine=e) for e in ENGINES]
    before = head(runs[0].progress.server.model)
    for run in runs:
        run.play()
    assert largest_difference(*map(state, runs)) < 1e-9
    assert largest_difference(before, head(runs[0].progress.server.model)) == 0
