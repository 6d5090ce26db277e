"""FedEnsemble: who predicts, and how votes are summed.

Logits (9, 0, 0), (0, 3, 0), (0, 3, 0): their mean is (3, 2, 0), so class 0. The mean of softmaxes
is (0.363, 0.606, 0.030), so class 1: e^3 / (e^3 + 2) = 0.909 counts twice, and nearly 1 once.
"""

from __future__ import annotations

import pytest
import torch

import fedshift as fs
from fedshift import evaluate, methods
from fedshift.engines import choice
from fedshift.errors import CannotCombine
from fedshift.methods.fedensemble import FedEnsemble, together
from fedshift.net import Net
from tests.methods.quadratic import ENGINES
from tests.methods.test_battery import PROTOCOL, start
from tests.toys import largest_difference

METHOD = FedEnsemble()
SURE = torch.tensor([[[9.0, 0, 0]], [[0, 3.0, 0]], [[0, 3.0, 0]]])


def test_votes_by_hand():
    third = torch.ones(3) / 3
    assert together(SURE, third, "logits").tolist() == [[3, 2, 0]]
    p = together(SURE, third, "probabilities").exp()
    assert p[0].tolist() == pytest.approx([0.363, 0.606, 0.030], abs=6e-4)
    alone = together(SURE, torch.tensor([0.0, 1, 0]), "probabilities")
    assert torch.allclose(alone, SURE[1].log_softmax(1)), "who has no weight says nothing"


@pytest.mark.parametrize("engine", ENGINES)
def test_training_is_fedavgs(engine):
    one, plain = (start(m, engine=engine).play().progress.server.model for m in (METHOD, "fedavg"))
    assert largest_difference({n: one[n] for n in plain}, dict(plain)) < 1e-12


def played(rounds, participation):
    """A run after some rounds, and the model that each client sent last."""
    run = start(METHOD, PROTOCOL.replace(rounds=rounds, participation=participation))
    found = {}
    for _ in range(rounds):
        player = choice.start(run.plan, run.federation, run.engine_name, 0)
        result = player.play(run._jobs(run.stages[0], run.progress))
        for k, client in enumerate(result.clients):
            found[client] = {n: t[k].clone() for n, t in result.model.items()}
        run._engine = run._start_engine()
        run.play_round()
    return run, found


@pytest.mark.parametrize(("rounds", "participation"), [(2, 1.0), (1, 2), (3, 2)])
@pytest.mark.parametrize("vote", ["logits", "probabilities"])
def test_the_last_model_of_each_client_predicts(rounds, participation, vote):
    """By hand: each client's last upload in eval mode, summed over those who have sent one."""
    run, sent = played(rounds, participation)
    plan, tensors = run.plan, run.progress.server.model
    x = run.federation.clients[0].test.x
    plan.model.eval()
    each = torch.stack([Net(plan.model, {**tensors, **own})(x) for own in sent.values()])
    wanted = each.mean(0) if vote == "logits" else each.softmax(2).mean(0).log()
    found = FedEnsemble(vote=vote).predict(Net(plan.model, tensors), x, "global")
    assert torch.allclose(found, wanted, atol=1e-12)
    assert len(sent) == tensors["fedensemble.present"].sum()


def test_scores_are_of_the_ensemble():
    run = start(METHOD, PROTOCOL.replace(rounds=3)).play()
    plan, tensors = run.plan, run.progress.server.model
    clients = run.federation.clients
    for line, client in zip(run.lines[-4:], clients):
        logits = evaluate.logits(plan, tensors, client.test.x)
        assert line["test"] == pytest.approx(
            (logits.argmax(1) == client.test.y).double().mean().item()
        )
        net = Net(plan.model.eval(), tensors)
        assert not torch.allclose(logits, net(client.test.x)), "the mean model says other things"


def test_before_the_first_round_the_initial_network_predicts():
    run = start(METHOD)
    x = run.federation.clients[0].test.x
    net = Net(run.plan.model.eval(), run.progress.server.model)
    assert torch.allclose(METHOD.predict(net, x, "global"), net(x), atol=1e-12)


def test_a_finished_run_predicts_with_all_models(tmp_path):
    run = start("fedensemble", out=tmp_path / "run").play()
    x = run.federation.clients[1].test.x
    wanted = evaluate.logits(run.plan, run.selected[0], x).softmax(1)
    assert torch.allclose(fs.load(tmp_path / "run").predict(x).double(), wanted, atol=1e-6)


@pytest.mark.parametrize("other", ["fedbn", "fedfa"])
def test_parts_of_models_are_refused(other):
    with pytest.raises(CannotCombine, match="'fedensemble' needs whole models"):
        start(methods.make(other) + METHOD).play()


@pytest.mark.parametrize("other", ["mixup", "fedprox", "fedbr"])
def test_with_methods_of_the_clients(other):
    assert start(f"fedensemble+{other}").play().lines[-1]["mean"] is not None
