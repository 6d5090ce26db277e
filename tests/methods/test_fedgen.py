"""FedGen: the server's loss by hand, what the generator learns, and every switch.

Heads that give all three logits alike have a cross-entropy of ln 3, whatever their shares u, which
sum to 1 over clients. Features that are all the same have a sameness of 1, its maximum, so that the
loss is ln 3 + v.
"""

from __future__ import annotations

import math

import pytest
import torch

import fedshift as fs
from fedshift import keys
from fedshift.federation import Client, Facts
from fedshift.method import Uploads
from fedshift.methods.fedgen import FedGen, sameness
from fedshift.net import Net
from fedshift.parts.contest import every_head
from fedshift.parts.labels import draw_labels
from fedshift.parts.latent_generator import Latent
from fedshift.tree import digest, under
from tests.methods.quadratic import ENGINES
from tests.methods.test_battery import PROTOCOL, start, state
from tests.methods.test_fedgenp import Flat
from tests.toys import CLASSES, federation, largest_difference

D = torch.float64
QUICK = {"alpha": 1.0, "beta": 1.0, "hidden": 16, "gen_steps": 3, "gen_batch": 8}


def small(**values):
    return FedGen(**{**QUICK, **values})


def server_of(run):
    return run.progress.server.methods["fedgen"]


def uploads(counts, heads):
    k = len(counts)
    return Uploads(
        clients=tuple("abcd"[:k]),
        samples=torch.ones(k, dtype=D),
        weights=torch.full((k,), 1 / k, dtype=D),
        model={"head.weight": heads},
        extras={"counts": torch.tensor(counts, dtype=D)},
        combined={},
        total=k,
        round=0,
    )


def after_a_round(method, given):
    """What the server holds after the first round."""
    net = Net(Flat().double())
    facts = Facts("classification", 3, (2,), ("a", "b"), width=2)
    server = method.init_server({"head.weight": given.model["head.weight"][0]}, facts)
    return method.after({}, given, server, net, key=3)[1]


def loss_of(method, given, made, y, noise):
    """The server's loss where the generator makes these features."""

    class Fixed:
        def __call__(self, tensors, y, drawn, training):
            return Latent(made, made, made)

    class Told(FedGen):
        generator = Fixed()

    counts = given.extras["counts"]
    told = Told(diversity=method.diversity)
    loss = told._agreement(given, Net(Flat().double()), counts / counts.sum(dim=0))
    return loss({}, {"y": y, "noise": noise}, torch.tensor(0), torch.tensor(0)).item()


def test_sameness_is_greatest_where_nothing_differs():
    noise = keys.normal(keys.as_tensor(0), (6, 4), D)
    assert sameness(noise, torch.ones(6, 2, dtype=D)).item() == 1.0
    assert sameness(torch.ones(6, 4), noise).item() == 1.0
    apart = keys.normal(keys.as_tensor(1), (6, 2), D)
    assert 1 > sameness(noise, apart) > sameness(noise, 2 * apart)


def test_the_servers_loss_by_hand():
    """Client a knows class 0 with 3 of 4 counts, b with 1; for class 1 it is 1 against 1.

    Features (1, 0): a's logits are (1, 0, 0), b's (0, 0, 0).
    """
    heads = torch.stack([torch.eye(3)[:, :2], torch.zeros(3, 2)]).double()
    given = uploads([[3.0, 1, 1], [1.0, 1, 1]], heads)
    made = torch.tensor([[1.0, 0], [1.0, 0]], dtype=D)
    y, noise = torch.tensor([0, 1]), torch.tensor([[0.0], [1.0]], dtype=D)
    e = math.e
    a0, a1, b = math.log((e + 2) / e), math.log(e + 2), math.log(3)
    wanted = (0.75 * a0 + 0.25 * b + 0.5 * a1 + 0.5 * b) / 2 + 1.0
    assert loss_of(FedGen(), given, made, y, noise) == pytest.approx(wanted, abs=1e-12)
    none = loss_of(FedGen(diversity=0.0), given, made, y, noise)
    assert none == pytest.approx(wanted - 1.0, abs=1e-12)
    alike = uploads([[2.0, 2, 2]] * 2, torch.zeros(2, 3, 2, dtype=D))
    assert loss_of(FedGen(), alike, made, y, noise) == pytest.approx(b + 1.0, abs=1e-12)


def test_a_generator_learns_what_heads_agree_on():
    """Its features of each class are then told rightly by the heads."""
    head = 3.0 * torch.eye(3)[:, :2].double()
    head[2] = -3.0
    given = uploads([[5.0, 5, 5]] * 2, torch.stack([head, head]))
    method = FedGen(gen_steps=200, gen_lr=0.02, hidden=16)
    tensors = under("generator", after_a_round(method, given).tensors)
    y = torch.arange(30) % 3
    drawn = method.generator.draw(keys.as_tensor(9), 30, tensors)
    made = method.generator(tensors, y, drawn).z
    logits = every_head(Net(Flat().double()), given.model)(made)[0]
    assert (logits.argmax(1) == y).float().mean() > 0.9
    untrained = under("generator", after_a_round(FedGen(gen_steps=1, hidden=16), given).tensors)
    before = every_head(Net(Flat().double()), given.model)(method.generator(untrained, y, drawn).z)[
        0
    ]
    assert (before.argmax(1) == y).float().mean() < 0.7


def test_classes_that_nobody_has_are_not_generated():
    heads = torch.zeros(2, 3, 2, dtype=D)
    server = after_a_round(small(), uploads([[4.0, 1, 2], [3.0, 1, 1]], heads))
    assert server.tensors["available"].tolist() == [1, 0, 1]
    labels = draw_labels(keys.as_tensor(0), 100, server.tensors["available"])
    assert set(labels.tolist()) == {0, 2}


def test_what_crosses():
    run = start(small(), PROTOCOL.replace(rounds=1))
    job = run._jobs(run.stages[0], run.progress)[0]
    sizes = {n: t.numel() for n, t in job.payload.tensors.items()}
    assert not any("optimizer" in n or "log_variance" in n for n in sizes)
    published = FedGen().init_server({}, Facts("classification", 10, (1,), ("a",), width=32))
    own = FedGen().broadcast(published, "a", 0).tensors
    numbers = {n: t.numel() for n, t in own.items() if n.startswith("generator/")}
    statistics = sum(v for n, v in numbers.items() if "running" in n)
    assert (sum(numbers.values()) - statistics, statistics) == (19_744, 512)
    sent = run._start_engine().play([job])
    (counts,) = sent.extras["fedgen/counts"]
    y = run.federation.clients[0].train.y
    assert counts.tolist() == (1 + torch.bincount(y, minlength=CLASSES)).tolist()


def test_the_first_round_is_fedavgs():
    one, plain = (start(m, PROTOCOL.replace(rounds=1)).play() for m in (small(), "fedavg"))
    assert largest_difference(one.progress.server.model, plain.progress.server.model) < 1e-12
    two, plain = (start(m).play() for m in (small(), "fedavg"))
    assert largest_difference(two.progress.server.model, plain.progress.server.model) > 1e-6
    assert two.lines[-1]["loss"]["generated"] > 0 < two.lines[-1]["loss"]["consistency"]


def test_generated_features_count_in_the_first_local_epochs_alone():
    """With the means of losses over two epochs: half of what they are over one."""
    runs = {
        n: start(small(local_epochs=n), PROTOCOL.replace(epochs=2, lr=1e-15)).play() for n in (1, 2)
    }
    one, two = (runs[n].lines[-1]["loss"]["consistency"] for n in (1, 2))
    assert 0.3 * two < one < 0.7 * two


@pytest.mark.parametrize(
    "settings", [{"noise": "uniform"}, {"alpha": 0.0}, {"beta": 0.0}, {"diversity": 0.0}]
)
def test_switches_agree_on_both_engines(settings):
    protocol = PROTOCOL.replace(rounds=3, participation=2)
    runs = [start(small(**settings), protocol, engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
    usual = start(small(), protocol).play()
    assert digest(dict(server_of(usual).tensors)) != digest(dict(server_of(runs[0]).tensors))


def test_clients_of_one_class_and_one_client_a_round():
    fed = federation((9, 6, 7))
    made = [
        Client(c.name, fs.Samples(c.train.x, c.train.y.clamp_max(k)), c.val, c.test)
        for k, c in enumerate(fed.clients)
    ]
    fed = fs.Federation(fed.name, tuple(made), fed.classes, fed.pipeline)
    protocol = PROTOCOL.replace(rounds=3, participation=0.3)
    runs = [start(small(), protocol, fed=fed, engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
    assert server_of(runs[0]).numbers["rounds"] == 3


@pytest.mark.parametrize("other", ["fedprox", "mixup", "fedbn"])
def test_with_methods_of_the_clients(other):
    runs = [start(small() + fs.methods.make(other), engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
