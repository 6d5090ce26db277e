"""FedDG-GA: weights from gaps by hand, and which losses the gaps are of.

a = 1/3 each, G = (0.3, -0.1, 0.1), d = 0.2. Less their mean gaps are (0.2, -0.2, 0), so a moves by
(0.2, -0.2, 0): (0.5333, 0.1333, 0.3333). As released, by 0.2 / 3 (1, -1/3, 1/3): (0.4, 0.3111,
0.3556), over their sum 1.0667: (0.3750, 0.2917, 0.3333).
"""

from __future__ import annotations

import pytest
import torch

from fedshift import task
from fedshift.engines import choice
from fedshift.federation import Facts
from fedshift.method import State, Uploads
from fedshift.methods.feddg_ga import FedDGGA, adjusted
from fedshift.net import Net
from tests.methods.quadratic import ENGINES
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import largest_difference

NAMES = ("a", "b", "c")
FACTS = Facts("classification", 3, (1,), NAMES)
D = torch.float64
THIRD = torch.full((3,), 1 / 3, dtype=D)


def uploads(gaps, left=1.0, clients=NAMES, weights=None):
    k = len(clients)
    left = [left] * k if isinstance(left, float) else left
    return Uploads(
        clients=tuple(clients),
        samples=torch.ones(k, dtype=D),
        weights=torch.full((k,), 1 / k, dtype=D) if weights is None else torch.tensor(weights),
        model={},
        extras={"gap": torch.tensor(gaps, dtype=D), "left": torch.tensor(left, dtype=D)},
        combined={},
        total=3,
        round=1,
    )


def after(method, given, server=None):
    return method.after({}, given, server or method.init_server({}, FACTS), None, 0)[1].tensors["a"]


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [("paper", [0.53333, 0.13333, 0.33333]), ("released", [0.375, 0.29167, 0.33333])],
)
def test_weights_of_the_sheet(rule, wanted):
    method, given = FedDGGA(rule=rule), uploads([0.3, -0.1, 0.1])
    assert after(method, given).tolist() == pytest.approx(wanted, abs=5e-6)
    used = method.weights(given, method.init_server({}, FACTS))
    assert (used / used.sum()).tolist() == pytest.approx(wanted, abs=5e-6)


def test_steps_fall_and_weights_are_cut():
    half = after(FedDGGA(), uploads([0.3, -0.1, 0.1], left=0.5))
    assert half.tolist() == pytest.approx([1 / 3 + 0.1, 1 / 3 - 0.1, 1 / 3])
    cut = adjusted(torch.tensor([0.95, 0.05, 0.0], dtype=D), torch.tensor([2.0, 0, -2]), 0.2)
    assert cut.tolist() == pytest.approx([1 / 1.05, 0.05 / 1.05, 0])


def test_gaps_that_are_all_alike_move_nothing():
    for gaps in ([0.0, 0.0, 0.0], [0.25, 0.25, 0.25]):
        assert after(FedDGGA(), uploads(gaps)).tolist() == pytest.approx(THIRD.tolist())
    assert after(FedDGGA(rule="released"), uploads([0.0] * 3)).tolist() == THIRD.tolist()


def test_who_is_absent_or_knows_no_gap_keeps_its_weight():
    a = after(FedDGGA(), uploads([5.0, 1.0], clients=("c", "a")))
    assert a.tolist() == pytest.approx([1 / 3 - 0.4 / 3, 1 / 3, 1 / 3 + 0.4 / 3])
    a = after(FedDGGA(), uploads([5.0, 1.0, 9.0], left=[1.0, 1.0, 0.0]))
    assert a.tolist() == pytest.approx([1 / 3 + 0.4 / 3, 1 / 3 - 0.4 / 3, 1 / 3])
    assert torch.equal(after(FedDGGA(), uploads([5.0, 1.0, 9.0], left=0.0)), THIRD)


def test_where_those_present_weigh_nothing_the_protocols_weights_hold():
    method = FedDGGA()
    numbers = method.init_server({}, FACTS).numbers
    server = State({"a": torch.tensor([1.0, 0, 0], dtype=D)}, numbers)
    given = uploads([1.0, 2.0], clients=("b", "c"), weights=[0.75, 0.25])
    assert method.weights(given, server).tolist() == [0.75, 0.25]
    assert after(method, given, server).tolist() == [1, 0, 0]


def loss_of(run, tensors, client):
    logits = Net(run.plan.model.eval(), tensors)(client.train.x)
    return task.loss("classification", logits, client.train.y).item()


@pytest.mark.parametrize("engine", ENGINES)
def test_gaps_are_the_means_loss_less_the_clients_own(engine):
    """Those of the first round go up in the second, of four: 3/4 of `step` would be left later."""
    run = start(FedDGGA(), PROTOCOL.replace(rounds=4), engine=engine)
    run._engine = run._start_engine()
    first = run._engine.play(run._jobs(run.stages[0], run.progress))
    assert not first.extras["feddg-ga/gap"].any() and not first.extras["feddg-ga/left"].any()
    model = run.progress.server.model
    clients = run.federation.clients
    own = [
        loss_of(run, {**model, **{n: t[k] for n, t in first.model.items()}}, c)
        for k, c in enumerate(clients)
    ]
    run.play_round()
    mean = [loss_of(run, run.progress.server.model, c) for c in clients]
    second = run._engine.play(run._jobs(run.stages[0], run.progress)).extras
    wanted = [m - o for m, o in zip(mean, own)]
    assert second["feddg-ga/gap"].tolist() == pytest.approx(wanted, abs=1e-9)
    assert second["feddg-ga/left"].tolist() == [1, 1, 1]
    run.play_round()
    third = run._engine.play(run._jobs(run.stages[0], run.progress)).extras
    assert third["feddg-ga/left"].tolist() == [0.75] * 3
    moved = run.progress.server.methods["feddg-ga"].tensors["a"]
    assert moved.tolist() == pytest.approx(adjusted(THIRD, second["feddg-ga/gap"], 0.2).tolist())


def test_a_round_uses_the_weights_of_its_gaps():
    run = start(FedDGGA(step=1.0), PROTOCOL.replace(rounds=3))
    run._engine = run._start_engine()
    run.play_round()
    player = choice.start(run.plan, run.federation, run.engine_name, 0)
    sent = player.play(run._jobs(run.stages[0], run.progress))
    run.play_round()
    a = run.progress.server.methods["feddg-ga"].tensors["a"]
    assert a.std() > 0.1
    for name, stacked in sent.model.items():
        if stacked.is_floating_point():
            wanted = torch.tensordot(a, stacked, 1)
            assert torch.allclose(run.progress.server.model[name], wanted, atol=1e-12)


@pytest.mark.parametrize("other", ["fedprox", "scaffold", "mixup", "fedbn", "fedbr"])
def test_with_methods_of_the_clients(other):
    protocol = PROTOCOL.replace(rounds=3)
    names = f"feddg-ga+{other}"
    runs = [start(names, protocol, engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
    assert runs[0].progress.server.methods["feddg-ga"].tensors["a"].std() > 0


def test_who_skipped_a_round_knows_no_gap():
    protocol = PROTOCOL.replace(rounds=6, participation=2)
    run = start(FedDGGA(), protocol)
    run._engine = run._start_engine()
    before: tuple[str, ...] = ()
    for _ in range(6):
        jobs = run._jobs(run.stages[0], run.progress)
        sent = run._engine.play(jobs).extras["feddg-ga/left"]
        assert [x > 0 for x in sent.tolist()] == [j.client in before for j in jobs]
        run.play_round()
        before = tuple(j.client for j in jobs)
