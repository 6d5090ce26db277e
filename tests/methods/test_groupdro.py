"""GroupDRO: weights from losses, worked out by hand.

Losses (1, 2, 3) and q uniform. Exponential with eta = 0.01: exp(0.01), exp(0.02), exp(0.03) over
their sum is (0.33001, 0.33332, 0.33667); after 100 rounds exp(1), exp(2), exp(3) over theirs,
(0.0900, 0.2447, 0.6652). Projection with eta = 0.1: 1/3 + (0.1, 0.2, 0.3) sums to 1.6, so each goes
down by 0.2: (0.2333, 0.3333, 0.4333).
"""

from __future__ import annotations

import math

import pytest
import torch

from fedshift import task
from fedshift.engines import choice
from fedshift.errors import CannotCombine
from fedshift.federation import Facts
from fedshift.method import State, Uploads
from fedshift.methods.groupdro import GroupDRO, projected, tilted
from tests.methods.quadratic import ENGINES
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import federation, largest_difference

NAMES = ("a", "b", "c")
FACTS = Facts("classification", 3, (1,), NAMES)


def uploads(losses, clients=NAMES, weights=None):
    k = len(clients)
    return Uploads(
        clients=tuple(clients),
        samples=torch.ones(k).double(),
        weights=torch.full((k,), 1 / k).double() if weights is None else torch.tensor(weights),
        model={},
        extras={"loss": torch.tensor(losses).double()},
        combined={},
        total=3,
        round=0,
    )


def play(method, rounds, **given):
    server = method.init_server({}, FACTS)
    for _ in range(rounds):
        _, server = method.after({}, uploads(**given), server, None, 0)
    return server


@pytest.mark.parametrize(
    ("method", "rounds", "wanted"),
    [
        (GroupDRO(), 1, [0.33001, 0.33332, 0.33667]),
        (GroupDRO(), 100, [0.0900, 0.2447, 0.6652]),
        (GroupDRO(rule="projection", eta=0.1), 1, [0.23333, 0.33333, 0.43333]),
    ],
)
def test_weights_of_the_sheet(method, rounds, wanted):
    server = play(method, rounds, losses=[1.0, 2.0, 3.0])
    digits = 5 if rounds == 1 else 4
    found = server.tensors["q"].tolist()
    assert found == pytest.approx(wanted, abs=0.51 * 10**-digits)
    before = play(method, rounds - 1, losses=[1.0, 2.0, 3.0])
    used = method.weights(uploads([1.0, 2.0, 3.0]), before)
    assert (used / used.sum()).tolist() == pytest.approx(found, abs=1e-12), "at once, not later"


@pytest.mark.parametrize("rule", ["exponential", "projection"])
def test_who_is_absent_keeps_its_weight(rule):
    method = GroupDRO(rule=rule, eta=0.1)
    server = play(method, 3, losses=[3.0, 1.0], clients=("c", "a"))
    q = server.tensors["q"]
    assert q[1].item() == pytest.approx(1 / 3) and q.sum().item() == pytest.approx(1)
    assert q[2] > 1 / 3 > q[0], "rows are told by names"


def test_the_protocols_weights_multiply():
    given = uploads([1.0, 2.0, 3.0], weights=[0.5, 0.25, 0.25])
    method = GroupDRO(eta=0.1)
    found = method.weights(given, method.init_server({}, FACTS))
    wanted = tilted(given.weights, 0.1 * given.extras["loss"])
    assert (found / found.sum()).tolist() == pytest.approx(wanted.tolist(), abs=1e-12)


def test_extreme_losses_stay_numbers():
    q = torch.full((2,), 0.5)
    assert tilted(q, torch.tensor([1e6, 0.0])).tolist() == [1.0, 0.0]
    assert projected(q + torch.tensor([9.0, 0.0]), torch.tensor(1.0)).tolist() == [1.0, 0.0]
    equal = projected(torch.full((4,), 7.0), torch.tensor(1.0))
    assert equal.tolist() == pytest.approx([0.25] * 4)


@pytest.mark.parametrize("rule", ["exponential", "projection"])
def test_where_those_present_weigh_nothing_the_protocols_weights_hold(rule):
    method = GroupDRO(rule=rule, eta=1.0)
    server = method.init_server({}, FACTS)
    server = State({"q": torch.tensor([1.0, 0.0, 0.0]).double()}, server.numbers)
    given = uploads([3.0, 1.0], clients=("b", "c"), weights=[0.75, 0.25])
    assert method.weights(given, server).tolist() == [0.75, 0.25]
    _, after = method.after({}, given, server, None, 0)
    assert after.tensors["q"].tolist() == [1, 0, 0]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("losses", ["first-step", "data"])
def test_the_loss_that_goes_up(losses, engine):
    """The received model's: of the first batch in train mode, or of all data in eval mode."""
    run = start(GroupDRO(losses=losses), PROTOCOL.replace(rounds=1, batch=9), engine=engine)
    if losses == "data":
        wanted = []
        run.plan.model.eval()
        for client in run.federation.clients:
            logits = run.plan.model.head(run.plan.model.features(client.train.x))
            wanted.append(task.loss("classification", logits, client.train.y).item())
    else:  # one step's mean loss is the loss of the first batch
        once = start("fedavg", PROTOCOL.replace(rounds=1, batch=9, steps=1)).play()
        wanted = [line["loss"]["task"] for line in once.lines[:3]]
    player = choice.start(run.plan, run.federation, run.engine_name, 0)
    sent = player.play(run._jobs(run.stages[0], run.progress)).extras["groupdro/loss"]
    assert sent.tolist() == pytest.approx(wanted, abs=1e-9)


def test_a_round_by_hand():
    """The mean of what clients sent, weighted by exp(eta times their losses)."""
    protocol = PROTOCOL.replace(rounds=1)
    run = start(GroupDRO(eta=2.0), protocol)
    player = choice.start(run.plan, run.federation, run.engine_name, 0)
    sent = player.play(run._jobs(run.stages[0], run.progress))
    after = start(GroupDRO(eta=2.0), protocol).play().progress.server.model
    each = [math.exp(2.0 * x) for x in sent.extras["groupdro/loss"].tolist()]
    weights = torch.tensor(each).double() / sum(each)
    for name, stacked in sent.model.items():
        if stacked.is_floating_point():
            assert torch.allclose(after[name], torch.tensordot(weights, stacked, 1), atol=1e-12)
    plain = start("fedavg", protocol).play().progress.server.model
    assert largest_difference(plain, {n: after[n] for n in plain}) > 1e-4


@pytest.mark.parametrize("settings", [{"losses": "data"}, {"rule": "projection"}])
def test_switches_agree_on_both_engines(settings):
    protocol = PROTOCOL.replace(participation=2, weights="samples")
    runs = [start(GroupDRO(eta=0.5, **settings), protocol, engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
    usual = start(GroupDRO(eta=0.5), protocol).play()
    q, other = (r.progress.server.methods["groupdro"].tensors["q"] for r in (usual, runs[0]))
    assert (q - other).abs().max() > 1e-6


@pytest.mark.parametrize("other", ["mixup", "fedprox", "fedbn", "scaffold", "pfedavg"])
def test_with_methods_of_the_clients(other):
    runs = [start(f"groupdro+{other}", engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
    assert runs[0].progress.server.methods["groupdro"].tensors["q"].std() > 0


def test_two_weights_of_clients_are_refused():
    class Other(GroupDRO):
        name = "other"

    with pytest.raises(CannotCombine, match="'groupdro' and 'other' both weight the clients"):
        GroupDRO() + Other()


def test_collect_stages_leave_weights_alone():
    run = start("groupdro+fedbr", fed=federation((8, 9, 10)))
    stage = run.stages[0]
    assert stage.program == "collect"
    before = run.progress.server.methods["groupdro"].tensors["q"]
    run._engine = run._start_engine()
    run.play_round()
    assert torch.equal(run.progress.server.methods["groupdro"].tensors["q"], before)
