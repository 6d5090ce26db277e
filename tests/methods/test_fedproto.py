"""FedProto: distances in three forms, prototypes over clients, and who says the class.

z = 0 and P = (1, 1, 1, 1): mean of squares 1, sum 4, root of the sum 2.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import fedshift as fs
from fedshift import methods
from fedshift.federation import Client, Federation
from fedshift.method import State, Uploads
from fedshift.methods.fedproto import MODULE, FedProto, distance, nearness
from fedshift.net import Net
from fedshift.tree import under
from tests.methods.quadratic import ENGINES
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import CLASSES, ToyNet, federation, largest_difference, samples

SHORT = PROTOCOL.replace(steps=2)


def test_distances():
    z, p = torch.zeros(1, 4), torch.ones(1, 4)
    found = [distance(z, p, kind).item() for kind in ("mse", "squared", "l2")]
    assert found == [1.0, 4.0, 2.0]
    here = torch.ones(1, 4, requires_grad=True)
    distance(here, p, "l2").sum().backward()
    assert torch.isfinite(here.grad).all(), "no direction where nothing is apart"


def lacking() -> Federation:
    """Client "a" has classes 0 and 1, "b" class 1 alone; nobody has class 2."""

    def of(n: int, key: int, classes: tuple[int, ...]):
        s = samples(n, key)
        keep = torch.stack([s.y == c for c in classes]).any(dim=0).nonzero().squeeze(1)
        return s.take(keep)

    parts = {"a": (0, 1), "b": (1,)}
    clients = [
        Client(name, of(9 * n, n, own), of(6, 5, own), of(9, 7, own))
        for n, (name, own) in enumerate(parts.items(), start=2)
    ]
    return Federation("lacking", tuple(clients), tuple("xyz"), source="")


def run(method, rounds=1, fed=None, engine="loop", **protocol) -> fs.Run:
    """Without dropout and norm."""
    return fs.Run(
        fed or lacking(),
        method,
        PROTOCOL.replace(rounds=rounds, **protocol),
        lambda: ToyNet(dropout=0.0, norm=False),
        dtype="float64",
        device="cpu",
        engine=engine,
        workers=1,
        warn=lambda message: None,
    ).play()


def held(run: fs.Run, name: str) -> torch.Tensor:
    return run.progress.server.model[f"{MODULE}.{name}"]


def own_means(run: fs.Run, client: Client) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of features and counts of each class, by the client's own model."""
    tensors = {**run.progress.server.model, **under("model", run.progress.kept[client.name])}
    z = Net(run.plan.model, tensors).features(client.train.x).detach()
    total = torch.stack([z[client.train.y == c].sum(dim=0) for c in range(CLASSES)])
    return total, torch.bincount(client.train.y, minlength=CLASSES).double()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weighted", [False, True])
def test_prototypes_are_means_over_the_clients_that_have_the_class(engine, weighted):
    played = run(FedProto(weighted=weighted), engine=engine)
    (t1, n1), (t2, n2) = (own_means(played, c) for c in played.federation.clients)
    both = (t1[1] + t2[1]) / (n1[1] + n2[1]) if weighted else (t1[1] / n1[1] + t2[1] / n2[1]) / 2
    assert n1[1] != n2[1] or not weighted
    assert torch.allclose(held(played, "means")[0], t1[0] / n1[0], atol=1e-12)
    assert torch.allclose(held(played, "means")[1], both, atol=1e-12)
    assert not held(played, "means")[2].any() and held(played, "present").tolist() == [1, 1, 0]
    seen = [played.progress.kept[c][f"model/{MODULE}.seen"].tolist() for c in "ab"]
    assert seen == [[1, 1, 0], [0, 1, 0]]


def test_the_first_round_pulls_at_nothing_and_the_second_at_the_mean():
    """The second round's first step starts where the client's own model ended the first."""
    one = run(FedProto(lam=2.0), steps=1, batch=18)
    two = run(FedProto(lam=2.0), rounds=2, steps=1, batch=18)
    lines = {(x["round"], x["client"]): x["loss"] for x in two.lines if x["client"]}
    for client in one.federation.clients:
        assert lines[1, client.name]["prototypes"] == 0
    tensors = {**one.progress.server.model, **under("model", one.progress.kept["b"])}
    b = one.federation["b"]
    z = Net(one.plan.model, tensors).features(b.train.x)
    count = 18 / len(b.train)
    assert count == int(count), "so that a batch holds every sample equally often"
    term = 2 * (z - held(one, "means")[1]).square().mean()
    assert lines[2, "b"]["prototypes"] == pytest.approx(term.item(), abs=1e-12)


def test_a_class_that_nobody_brings_keeps_its_prototype():
    old = {f"{MODULE}.means": torch.tensor([[1.0], [2.0]]), f"{MODULE}.present": torch.ones(2)}
    came = {"total": torch.tensor([[0.0], [9.0]]), "count": torch.tensor([0.0, 3.0])}
    one = torch.ones(1)
    uploads = Uploads(("a",), one, one, {}, {}, combined=came, total=2, round=5)
    new, _ = FedProto().after(old, uploads, State(), None, 0)
    assert new[f"{MODULE}.means"].tolist() == [[1.0], [3.0]]
    assert FedProto().after(old, replace(uploads, combined={}), State(), None, 0)[0] is old


@pytest.mark.parametrize("engine", ENGINES)
def test_features_of_the_last_epochs_passes(engine):
    """At a rate of next to nothing they are those of the model, each sample once."""
    options = {"epochs": 2, "batch": 6, "lr": 1e-14, "engine": engine}
    ways = [
        run(FedProto(prototypes=p), fed=federation((12, 6)), **options)
        for p in ("after", "last-epoch")
    ]
    assert torch.allclose(*(held(r, "means") for r in ways), atol=1e-9)
    options["lr"] = 0.3
    ways = [
        run(FedProto(prototypes=p), fed=federation((12, 6)), **options)
        for p in ("after", "last-epoch")
    ]
    assert not torch.allclose(*(held(r, "means") for r in ways), atol=1e-3)


def test_the_nearest_prototype_among_known_classes():
    z = torch.tensor([[2.9], [0.2]])
    means, every = torch.tensor([[0.0], [1.0], [3.0]]), torch.ones(3)

    def says(present, seen):
        return nearness(z, means, torch.tensor(present), torch.tensor(seen)).argmax(dim=1).tolist()

    assert nearness(z, means, every, every).argmax(dim=1).tolist() == [2, 0]
    assert says([1.0, 1, 1], [1.0, 1, 0]) == [1, 0]
    assert says([0.0, 1, 1], [1.0, 1, 0]) == [1, 1]
    assert says([1.0, 0, 1], [0.0, 0, 0]) == [2, 0], "who saw none may choose among all"


def test_the_two_rules_of_prediction():
    runs = {rule: run(FedProto(rule=rule)) for rule in ("nearest", "head")}
    assert largest_difference(*(state(r) for r in runs.values())) == 0
    b = runs["head"].federation["b"]
    for rule, played in runs.items():
        method, model = played.method, played.plan.model
        own = {**played.progress.server.model, **under("model", played.progress.kept["b"])}
        net = Net(model, own)
        found = method.predict(net, b.test.x, "personal")
        expected = net(b.test.x) if rule == "head" else None
        if expected is not None:
            assert torch.equal(found, expected)
        else:
            assert set(found.argmax(dim=1).tolist()) == {1}, "all that client b knows"
    initial = start(FedProto())
    x = initial.federation["a"].test.x
    net = Net(initial.plan.model, initial.progress.server.model)
    initial.plan.model.eval()
    assert torch.equal(initial.method.predict(net, x, "personal"), net(x)), "no prototype yet"


def test_without_the_pull_it_is_local_training():
    alone = start(methods.make("local")).play()
    for options in ({"lam": 0.0}, {"lam": 0.0, "rule": "head"}):
        mine = start(FedProto(**options)).play()
        for client in "abc":
            own = under("model", mine.progress.kept[client])
            theirs = under("model", alone.progress.kept[client])
            assert largest_difference({n: own[n] for n in theirs}, theirs) == 0


def test_no_weight_travels():
    numbers = 8 * (CLASSES * 8 + CLASSES)  # float64, 8 features
    line = start(FedProto()).play().lines[-1]
    assert (line["bytes_up"], line["bytes_down"]) == (3 * numbers, 3 * numbers)
    shared = start(FedProto(share_weights=True)).play().lines[-1]
    plain = start(methods.make("fedavg")).play().lines[-1]
    assert shared["bytes_up"] == plain["bytes_up"] + 3 * numbers


@pytest.mark.parametrize("other", ["mixup", "fedprox", "fedbn", "feddecorr", "pfedavg"])
def test_compositions_agree_on_both_engines(other):
    beside = methods.make(other) + FedProto(share_weights=True, prototypes="last-epoch")
    runs = [start(beside, SHORT, engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
    assert runs[0].lines[-1]["loss"]["prototypes"] > 0
