"""Importance-weighted aggregation in a run: by hand, with other methods, and each switch."""

from __future__ import annotations

import pytest
import torch

import fedshift as fs
from fedshift import methods
from fedshift.batches import Pool, View
from fedshift.engines import choice
from fedshift.errors import CannotCombine
from fedshift.method import Uploads
from fedshift.net import Net
from fedshift.parts.importance import importances, shares
from tests.methods.test_battery import PROTOCOL, make, start, state
from tests.toys import federation, largest_difference

Importance = methods.method_class("importance")


def uploads(omega):
    """Three clients of equal weight; the third parameter tells nothing."""
    return Uploads(
        clients=("a", "b", "c"),
        samples=torch.ones(3).double(),
        weights=torch.full((3,), 1 / 3, dtype=torch.float64),
        model={},
        extras={"importance/w": torch.tensor(omega).double()},
        combined={},
        total=3,
        round=0,
    )


def test_weights_of_elements():
    """Shares of (1, 1, 2) and (2, 1, 1); nobody's importance leaves a third each."""
    theta = torch.tensor([[1.0, 2.0, 3.0], [3.0, 0.0, -1.0], [5.0, 4.0, 1.0]]).double()
    each = Importance().element_weights("w", uploads([[1, 0, 2], [1, 0, 1], [2, 0, 1]]))
    assert (each * theta).sum(0).tolist() == pytest.approx([3.5, 2.0, 1.5], abs=1e-12)
    equal = Importance().element_weights("w", uploads([[2, 3, 1]] * 3))
    assert torch.allclose((equal * theta).sum(0), theta.mean(0))
    assert Importance().element_weights("buffer", uploads([[1, 1, 1]] * 3)) is None


def trip(method, protocol=PROTOCOL):
    """What clients send in the first round, and the run before and after it."""
    run = start(method, protocol.replace(rounds=1))
    player = choice.start(run.plan, run.federation, run.engine_name, 0)
    return run, player.play(run._jobs(run.stages[0], run.progress))


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_a_round_by_hand(weights):
    """Trained parameters by importance, all else by the protocol's weights."""
    protocol = PROTOCOL.replace(weights=weights)
    run, result = trip(Importance(), protocol)
    n = torch.tensor([len(c.train) for c in run.federation.clients]).double()
    own = n / n.sum() if weights == "samples" else torch.ones(3).double() / 3
    after = start(Importance(), protocol.replace(rounds=1)).play().progress.server.model
    trained = dict(run.plan.model.named_parameters())
    for name, stacked in result.model.items():
        if name in trained:
            each = shares(result.extras[f"importance/importance/{name}"], own)
            assert torch.allclose(after[name], (each * stacked).sum(0), atol=1e-12)
        elif stacked.is_floating_point():
            assert torch.allclose(after[name], torch.tensordot(own, stacked, 1), atol=1e-12)
    plain = start(fs.methods.FedAvg(), protocol.replace(rounds=1)).play().progress.server.model
    assert largest_difference(plain, after) > 1e-4


@pytest.mark.parametrize("settings", [{}, {"group": 1}, {"norm": "plain"}, {"encoder": "features"}])
def test_what_goes_up_is_measured_on_the_trained_model(settings):
    method = Importance(**settings)
    run, result = trip(method)
    k, client = 1, run.federation.clients[1]
    data = View(
        Pool.of([client.train], run.device),
        torch.arange(len(client.train)),
        torch.ones(len(client.train), dtype=torch.bool),
        run.plan.pipeline,
        torch.float64,
    )
    net = Net(run.plan.model, {n: t[k] for n, t in result.model.items()})
    how = (method.group, method.norm, method.encoder)
    found = importances(net, data, run.plan.shared, torch.tensor(len(client.train)), *how)
    for name, omega in found.items():
        assert torch.allclose(result.extras[f"importance/importance/{name}"][k], omega, atol=1e-12)
    if settings:
        _, usual = trip(Importance())
        assert largest_difference(usual.extras, result.extras) > 1e-6


@pytest.mark.parametrize(
    "other", ["fedprox", "mixup", "scaffold", "fedbn", "fedavgm", "fedprox+mixup", "pfedavg"]
)
def test_with_any_method_of_the_clients(other):
    names = f"importance+{other}"
    loop = start(names).play()
    stacked = start(names, engine="stacked").play()
    assert largest_difference(state(loop), state(stacked)) < 1e-9
    without = start(other).play()
    assert largest_difference(loop.progress.server.model, without.progress.server.model) > 1e-5


def uneven():
    """A client of one class, one smaller than a batch, and a class that nobody has."""
    fed = federation((13, 3, 11))
    clients = []
    for client, most in zip(fed.clients, (0, 1, 1), strict=True):
        train = fs.Samples(client.train.x, client.train.y.clamp_max(most))
        clients.append(fs.Client(client.name, train, client.val, client.test))
    return fs.Federation(fed.name, tuple(clients), fed.classes, fed.pipeline)


@pytest.mark.parametrize("settings", [{}, {"group": 1, "norm": "plain"}])
def test_one_class_few_samples_absent_classes(settings):
    method, protocol = Importance(**settings), PROTOCOL.replace(participation=2, weights="samples")
    loop = start(method, protocol, fed=uneven()).play()
    stacked = start(method, protocol, fed=uneven(), engine="stacked").play()
    assert largest_difference(state(loop), state(stacked)) < 1e-9
    assert all(torch.isfinite(t).all() for t in state(loop).values() if t.is_floating_point())


def test_two_weights_of_one_element_are_refused():
    with pytest.raises(
        CannotCombine, match="'importance' and 'fedlsi' both weight single elements"
    ):
        make("importance+fedlsi")


def test_kept_tensors_have_no_importance():
    _, result = trip(make("importance+fedbn"))
    assert not any("conv.1" in name for name in result.extras)
    assert "importance/importance/conv.0.weight" in result.extras


def test_a_tuning_sends_nothing():
    run = start("importance+pfedavg").play()
    ends = [line for line in run.lines if line["client"] is None]
    assert [line["stage"] for line in ends] == ["train", "train", "tune"]
    assert ends[-1]["bytes_up"] == 0 < ends[0]["bytes_up"]
