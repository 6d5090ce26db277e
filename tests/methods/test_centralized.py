"""Centralized: FedAvg with one client that has all data, scored on every client's own."""

from __future__ import annotations

import pytest
import torch

from fedshift import evaluate, methods, tree
from fedshift.errors import CannotCombine
from fedshift.methods.centralized import Centralized
from tests.methods.quadratic import ENGINES, run, w
from tests.methods.test_battery import start
from tests.toys import federation


@pytest.mark.parametrize("engine", ENGINES)
def test_it_is_fedavg_with_one_client(engine):
    ours = start("centralized", engine=engine).play()
    theirs = start("fedavg", fed=federation().pooled(), engine=engine).play()
    assert tree.digest(ours.progress.server.model) == tree.digest(theirs.progress.server.model)


@pytest.mark.parametrize("engine", ENGINES)
def test_it_finds_the_optimum_of_the_sum(engine):
    """Of 0.5 w^2 + 1.5 (w - 1)^2: 0.75, where FedAvg ends at 0.670133."""
    assert w(run(Centralized(), engine, 30, batch=2)) == pytest.approx(0.75, abs=1e-12)


def test_every_client_is_scored_on_its_own_data():
    played = start("centralized").play()
    assert played.federation.names == ("pooled",) and len(played.federation["pooled"].train) == 38
    last = {line["client"]: line for line in played.lines}
    for client in federation().clients:
        right = evaluate.logits(played.plan, played.progress.server.model, client.test.x).argmax(1)
        assert last[client.name]["test"] == pytest.approx(
            (right == client.test.y).double().mean().item()
        )
    assert last[None]["mean"] == pytest.approx(sum(last[c]["test"] for c in "abc") / 3)
    assert last["pooled"]["test"] is None


def test_who_is_held_out_is_not_pooled():
    played = start("centralized", hold_out=["b"])
    assert torch.equal(
        played.federation["pooled"].train.x,
        torch.cat([federation()[c].train.x for c in "ac"]),
    )


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("scaffold", "'scaffold' needs a server"),
        ("fedavgm", "'fedavgm' needs a server"),
        ("fedbn", "'fedbn' gives every client a model of its own"),
        ("local", "'local' gives every client a model of its own"),
    ],
)
def test_what_makes_no_sense_with_one_party(other, why):
    for text in (f"centralized+{other}", f"{other}+centralized"):
        with pytest.raises(CannotCombine, match=f"'centralized' and '{other}' cannot.*{why}"):
            methods.make(text)
    assert methods.make("centralized+mixup+fedprox").pooled
