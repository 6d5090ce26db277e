"""pFedAvg: FedAvg, then each client tunes the global model, which does not feed back.

On the two quadratics each round of tuning leaves q_k of the way from w to the client's own minimum,
with q = (1 - 0.1 a)^5.
"""

from __future__ import annotations

import pytest

from fedshift import evaluate, tree
from fedshift.methods.fedavg import FedAvg
from fedshift.methods.pfedavg import PFedAvg
from tests.methods.quadratic import ENGINES, W, run, w
from tests.methods.test_battery import PROTOCOL, start


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("tune", [1, 3])
def test_tuning_goes_on_from_the_global_model(engine, tune):
    played = run(PFedAvg(tune=tune), engine, 2)
    at = w(run(FedAvg(), engine, 2))
    assert w(played) == at
    tuned = [k[f"tuned/{W}"].item() for k in played.progress.kept.values()]
    assert tuned == pytest.approx(
        [0.9 ** (5 * tune) * at, 1 + 0.7 ** (5 * tune) * (at - 1)], abs=1e-12
    )


def test_tuned_models_do_not_feed_back():
    """The server ends where FedAvg ends, bit for bit, and clients keep nothing else."""
    ours, theirs = start(PFedAvg(tune=2)).play().progress, start("fedavg").play().progress
    assert tree.digest(ours.server.model) == tree.digest(theirs.server.model)
    for kept in ours.kept.values():
        assert {n.partition("/")[0] for n in kept} == {"tuned"}


def test_tuning_takes_everyone_whoever_trained():
    played = start("pfedavg", PROTOCOL.replace(participation=2)).play()
    rounds = [line for line in played.lines if line["client"] is None]
    assert [len(r["participants"]) for r in rounds] == [2, 2, 3]
    assert [r["stage"] for r in rounds] == ["train", "train", "tune"]
    assert all(k for k in played.progress.kept.values())


def test_scores_are_of_the_tuned_models():
    played = start("pfedavg", PROTOCOL.replace(lr=0.3)).play()
    last = {line["client"]: line for line in played.lines}
    for client in played.federation.clients:
        model = tree.under("tuned", played.progress.kept[client.name])
        right = evaluate.logits(played.plan, model, client.test.x).argmax(1) == client.test.y
        assert last[client.name]["personal_test"] == pytest.approx(right.double().mean().item())
    assert last[None]["mean"] == pytest.approx(sum(last[c]["personal_test"] for c in "abc") / 3)


def test_without_tuning_it_has_the_scores_of_fedavg():
    ours, theirs = start(PFedAvg(tune=0)).play().lines, start("fedavg").play().lines
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        if a["client"]:
            assert a["personal_test"] == b["test"] and a["personal_val"] == b["val"]
        else:
            assert (a["mean"], a["worst"]) == (b["mean"], b["worst"])
