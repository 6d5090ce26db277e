"""FPL's contrast and regression on unit vectors, and its clusters over clients.

One positive in the direction of z and one negative across it: log(1 + e^{-1 / tau}), which is 0 at
tau = 0.02 (2e-22) and 0.126928 at 0.5; turned round, 1 / tau more: 50 at tau = 0.02. Two positives
and a negative that are all equal: log(3 / 2) = 0.405465.
"""

from __future__ import annotations

import math

import pytest
import torch

import fedshift as fs
from fedshift import methods
from fedshift.federation import Facts
from fedshift.method import State, Uploads
from fedshift.methods.fpl import FPL, clustered, contrast, regression
from fedshift.net import Net
from fedshift.parts import rows
from tests.methods.quadratic import ENGINES
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import CLASSES, ToyNet, federation, largest_difference

SHORT = PROTOCOL.replace(steps=2)
X, Y = [1.0, 0.0], [0.0, 1.0]
NIL = [0.0, 0.0]
ONES = torch.ones(2, 1)


def term(z, clusters, present, tau, y=0) -> float:
    made = torch.tensor(clusters), torch.as_tensor(present)
    return contrast(torch.tensor([z]), torch.tensor([y]), *made, tau).item()


def test_contrast():
    assert term(X, [[X], [Y]], ONES, 0.02) == pytest.approx(0.0, abs=1e-12)
    assert term(X, [[X], [Y]], ONES, 0.5) == pytest.approx(0.126928, abs=1e-6)
    assert term(X, [[Y], [X]], ONES, 0.02) == pytest.approx(50.0, abs=1e-5)
    two = [[1.0, 1.0], [1.0, 0.0]]
    assert term(X, [[X, X], [X, Y]], two, 0.5) == pytest.approx(math.log(1.5), abs=1e-6)
    assert term(X, [[Y], [X]], ONES, 1e-3) == pytest.approx(1000.0), "e^1000 has no place here"


def test_a_class_without_prototype_adds_nothing():
    z = torch.tensor([X, Y], requires_grad=True)
    clusters, present = torch.tensor([[NIL], [X]]), torch.tensor([[0.0], [1.0]])
    y = torch.tensor([0, 1])
    each = contrast(z, y, clusters, present, 0.02) + regression(z, y, clusters, present)
    each.sum().backward()
    assert each.tolist() == [0, 1], "the one cluster is all there is"
    assert not z.grad[0].any() and torch.isfinite(z.grad).all()


def test_the_mean_is_over_clusters_and_not_over_clients():
    """Three clients at 0 and two at 90 degrees: the mean of the two clusters is at 45."""
    near, far = [1.0, 0.0], [0.0, 1.0]
    own = torch.tensor([[near], [near], [near], [far], [far]])
    clusters, present = clustered(own, torch.ones(5, 1))
    assert clusters.tolist() == [[near, far]] and present.tolist() == [[1, 1]]
    z = torch.tensor([[0.5, 0.5]])
    assert regression(z, torch.tensor([0]), clusters, present).item() == 0
    assert regression(z + 2, torch.tensor([0]), clusters, present).item() == 4


def test_only_prototypes_that_there_are_are_clustered():
    own = torch.tensor([[X, NIL, Y], [NIL, NIL, X], [Y, NIL, Y], [NIL, NIL, X]])
    has = torch.tensor([[1.0, 0, 1], [0, 0, 1], [1, 0, 1], [0, 0, 1]])
    clusters, present = clustered(own, has)
    assert present.tolist() == [[1, 0], [0, 0], [1, 1]]
    assert clusters[0, 0].tolist() == [0.5, 0.5] and clusters[2].tolist() == [Y, X]
    one, there = clustered(own[:1], has[:1])
    assert one.shape == (3, 1, 2) and there.tolist() == [[1], [0], [1]]


def test_who_is_away_still_counts():
    """Places are by name, so it does not matter who answers first."""
    facts = Facts("classification", 1, (1,), ("b", "a"), width=2)
    method, zero = FPL(), {"w": torch.zeros(1)}
    server = method.init_server(zero, facts)
    assert method.broadcast(server, "a", 0).tensors == {}
    for client, own in (("b", X), ("a", Y), ("b", [1.0, 2.0])):
        came = {"own": torch.tensor([[own]]), "has": torch.ones(1, 1)}
        one = torch.ones(1)
        uploads = Uploads((client,), one, one, zero, came, {}, total=2, round=0)
        _, server = method.after(zero, uploads, server, None, 0)
    assert rows.rows_of(server.numbers) == {"a": 0, "b": 1}
    assert server.tensors["own"].tolist() == [[Y], [[1.0, 2.0]]]
    assert method.broadcast(server, "a", 3).tensors["clusters"].tolist() == [[[0.5, 1.5]]]
    assert method.after(zero, Uploads((), one, one, {}, {}, {}, 2, 0), server, None, 0)[1] is server
    assert State() == FPL(contrast=0, regression=0).init_server(zero, facts)


def play(method, rounds=1, engine="loop", **protocol) -> fs.Run:
    """Without dropout and norm."""
    return fs.Run(
        federation((12, 12, 6)),
        method,
        PROTOCOL.replace(rounds=rounds, **protocol),
        lambda: ToyNet(dropout=0.0, norm=False),
        dtype="float64",
        device="cpu",
        engine=engine,
        workers=1,
        warn=lambda message: None,
    ).play()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_terms_of_the_second_round(engine):
    """Its first step is taken at the received model; a batch of 12 holds all samples alike."""
    method = FPL(contrast=0.3, regression=2.0, tau=0.5)
    one, two = (play(method, r, engine, steps=1, batch=12, lr=0.3) for r in (1, 2))
    told = {(x["round"], x["client"]): x["loss"] for x in two.lines if x["client"]}
    held = one.progress.server.methods["fpl"].tensors
    clusters, present = held["clusters"], held["present"]
    assert present.tolist() == [[1]] * CLASSES
    assert torch.allclose(clusters[:, 0], held["own"].mean(dim=0), atol=1e-12)
    net = Net(one.plan.model, dict(one.progress.server.model))
    for client in one.federation.clients:
        assert set(told[1, client.name]) == {"task"}, "no prototypes yet"
        z, y = net.features(client.train.x), client.train.y
        pulled = 2.0 * regression(z, y, clusters, present).mean().item()
        apart = 0.3 * contrast(z, y, clusters, present, 0.5).mean().item()
        assert told[2, client.name]["fpl_regression"] == pytest.approx(pulled, abs=1e-12)
        assert told[2, client.name]["fpl_contrast"] == pytest.approx(apart, abs=1e-12)


def test_features_of_the_last_epochs_passes():
    """At a rate of next to nothing they are those of the model, each sample once."""
    for lr, alike in ((1e-14, True), (0.3, False)):
        options = {"epochs": 2, "batch": 6, "lr": lr}
        ways = [play(FPL(prototypes=p), **options) for p in ("after", "last-epoch")]
        own = [r.progress.server.methods["fpl"].tensors["own"] for r in ways]
        assert torch.allclose(*own, atol=1e-9) == alike
    runs = [start(FPL(prototypes="last-epoch"), engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9


@pytest.mark.parametrize("other", ["mixup", "fedprox", "fedbn", "fedfa", "feddecorr", "moon"])
def test_compositions_agree_on_both_engines(other):
    beside = methods.make(other) + FPL()
    runs = [start(beside, SHORT, engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
    assert runs[0].lines[-1]["loss"]["fpl_contrast"] > 0
