"""Local: nothing of another client can be felt, and nothing travels."""

from __future__ import annotations

import dataclasses

import pytest

from fedshift import evaluate, tree
from fedshift.federation import Federation, Samples
from fedshift.methods.local import Local
from tests.methods.quadratic import ENGINES, TWO, W, clients, run
from tests.methods.test_battery import PROTOCOL, start
from tests.toys import federation


@pytest.mark.parametrize("engine", ENGINES)
def test_another_clients_data_change_nothing(engine):
    fed = federation()
    other = fed["b"]
    other = dataclasses.replace(other, train=Samples(other.train.x.flip(0) + 1.0, other.train.y))
    changed = Federation(fed.name, (fed["a"], other, fed["c"]), fed.classes)
    before, after = (
        start("local", fed=f, engine=engine).play().progress.kept for f in (fed, changed)
    )
    same = {c: tree.digest(before[c]) == tree.digest(after[c]) for c in fed.names}
    assert same == {"a": True, "b": False, "c": True}


@pytest.mark.parametrize("engine", ENGINES)
def test_each_client_goes_its_own_way(engine):
    """3 rounds of 5 steps leave (1 - 0.1 a)^15 of the way from 0 to b."""
    played = run(Local(), engine, 3)
    own = [k[f"model/{W}"].item() for k in played.progress.kept.values()]
    assert own == pytest.approx([0, 1 - 0.7**15], abs=1e-12)


def test_it_has_the_steps_of_a_federation_and_the_same_beginning():
    """Alone in its federation, a client of FedAvg does the same, bit for bit."""
    alone = start("fedavg", fed=federation((17,))).play().progress.server.model
    kept = start("local").play().progress.kept["a"]
    assert tree.digest(tree.under("model", kept)) == tree.digest(alone)


def test_nothing_travels_and_no_global_model_is_scored():
    played = start("local").play()
    assert all(line["bytes_up"] == line["bytes_down"] == 0 for line in played.lines)
    assert all(line.get("test") is None for line in played.lines)
    model = evaluate.personal_tensors(played.progress.server.model, played.progress.kept["b"])
    test = played.federation["b"].test
    right = evaluate.logits(played.plan, model, test.x).argmax(1) == test.y
    line = next(line for line in played.lines[::-1] if line["client"] == "b")
    assert line["personal_test"] == pytest.approx(right.double().mean().item())


def test_an_unseen_client_has_no_model():
    line = next(
        line
        for line in start("local", PROTOCOL.replace(rounds=1), hold_out=["c"]).play().lines
        if line["client"] == "c"
    )
    assert line["role"] == "unseen" and line["test"] is None and line["val"] is None


def test_two_curves_of_one_target_stay_two():
    played = run(Local(), "loop", 1, fed=clients(*TWO[:1], (2.0, 0.5, 0.0)))
    assert played.progress.kept["b"][f"model/{W}"].item() == pytest.approx(0.5 * (1 - 0.8**5))
