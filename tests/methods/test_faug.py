"""FAug: what clients lack, what they send, and how batches are filled.

A client with (90, 10, 0) samples lacks (0, 80, 90): 170 of 270 samples that it trains on are
generated, none of class 0, and the others as 80 to 90.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import fedshift as fs
from fedshift import keys
from fedshift.batches import Pool, View
from fedshift.federation import Client, Facts
from fedshift.methods.faug import COLLECT, SEND, FAug, lacking
from fedshift.tree import under
from tests.methods.quadratic import ENGINES
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import CLASSES, federation, largest_difference

QUICK = {"noise_dim": 8, "hidden": 16, "gan_steps": 3, "gan_batch": 8}


def small(**values):
    return FAug(**{**QUICK, **values})


def skewed(counts=((9, 3, 0), (2, 0, 6), (4, 4, 4))):
    """A toy federation whose clients have so many samples of each class."""
    fed = federation((30,) * len(counts))
    clients = []
    for client, wanted in zip(fed.clients, counts, strict=True):
        s = client.train
        at = torch.cat([(s.y == c).nonzero()[:n, 0] for c, n in enumerate(wanted)])
        clients.append(Client(client.name, s.take(at), client.val, client.test))
    return fs.Federation(fed.name, tuple(clients), fed.classes, fed.pipeline)


def played_until(stage, method, fed):
    """A run that has ended a stage."""
    run = start(method, fed=fed)
    run._engine = run._start_engine()
    while run.stages[run.progress.stage].name != stage:
        run.play_round()
    return run


def test_what_is_lacked():
    assert lacking(torch.tensor([90.0, 10, 0])).tolist() == [0, 80, 90]
    assert lacking(torch.tensor([90.0, 10, 0]), extra=5).tolist() == [5, 85, 95]
    assert lacking(torch.tensor([4.0, 4, 4])).tolist() == [0, 0, 0]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_clients_send_and_keep(engine):
    fed = skewed()
    run = start(small(seeds=4), fed=fed, engine=engine)
    run._engine = run._start_engine()
    result = run._engine.play(run._jobs(run.stages[0], run.progress))
    there = result.extras["faug/there"].sum(2)
    assert there.tolist() == [[4, 3, 0], [2, 0, 4], [4, 4, 4]]
    x = result.extras["faug/seeds"]
    own = {tuple(t.flatten().tolist()) for t in fed.clients[1].train.x}
    for c in range(CLASSES):
        found = {
            tuple(t.flatten().tolist()) for t in x[1, c][result.extras["faug/there"][1, c] > 0]
        }
        assert found <= own and len(found) == there[1, c]
    run.play_round()
    held = run.progress.server.methods["faug"].tensors
    assert held["available"].tolist() == [1, 1, 1]
    run.play_round()
    assert not run.progress.server.methods["faug"].tensors, "sent, it is forgotten"
    for kept in run.progress.kept.values():
        assert largest_difference(under("faug", kept), dict(held)) == 0
    assert run.method.content("faug/seeds") == "raw data"
    assert [s.name for s in run.stages] == [COLLECT, SEND, "train"]


class Moment:
    """What `start` and `batch` look at."""

    def __init__(self, kept, lacked, n):
        lacked = torch.tensor(lacked).double()
        self.kept, self.key = kept, keys.as_tensor(11)
        self.fixed = {"lacked": lacked, "share": lacked.sum() / (lacked.sum() + n)}
        self.facts = Facts("classification", CLASSES, (1, 6, 6), ("a",))
        self.stage, self.lr = "train", torch.ones((), dtype=torch.float64)


def test_batches_are_filled_as_the_client_lacks():
    """170/270 = 0.63 of 4000 samples are exchanged, of classes 1 and 2 as 80 to 90."""
    method = small()
    generator = method.gan.initial(keys.as_tensor(0), CLASSES, 36, torch.float64)
    kept = {f"generator/{n}": t for n, t in generator.items()}
    x, y = torch.full((4000, 1, 6, 6), 9.0).double(), torch.zeros(4000, dtype=torch.int64)
    moment = Moment(kept, [0.0, 80.0, 90.0], 100)
    found, label = method.batch(x, y, moment)
    made = (found != 9.0).flatten(1).all(1)
    assert made.double().mean().item() == pytest.approx(170 / 270, abs=0.03)
    assert (label[~made] == 0).all() and (label[made] > 0).all()
    assert (label[made] == 2).double().mean().item() == pytest.approx(90 / 170, abs=0.04)
    soft, soft_label = method.batch(x, F.one_hot(y, CLASSES).double(), moment)
    assert torch.equal(soft, found) and torch.equal(soft_label.argmax(1), label)
    none, label = method.batch(x, y, Moment(kept, [0.0, 0.0, 0.0], 100))
    assert torch.equal(none, x) and torch.equal(label, y)


def test_where_nothing_is_lacked_it_is_fedavg_unless_more_is_asked_for():
    fed = federation((12, 9, 15))
    plain = start("fedavg", fed=fed).play().progress.server.model
    same = start(small(), fed=fed).play().progress.server.model
    assert largest_difference(plain, same) < 1e-12
    more = start(small(extra=9), fed=fed).play().progress.server.model
    assert largest_difference(plain, more) > 1e-4


def test_classes_that_nobody_has_are_not_generated():
    """Client a has (6, 2, 0), and nobody the third class: 4 of 12 samples are generated."""
    run = played_until("train", small(), skewed(((6, 2, 0), (3, 5, 0))))
    kept = under("faug", run.progress.kept["a"])
    assert kept["available"].tolist() == [1, 1, 0]
    train = run.federation["a"].train
    data = View(
        Pool.of([train], run.device),
        torch.arange(len(train)),
        torch.ones(len(train), dtype=torch.bool),
        run.plan.pipeline,
        torch.float64,
    )
    moment = Moment(kept, [0.0, 0.0, 0.0], 8)
    found = small().start(moment, None, data)
    assert found["lacked"].tolist() == [0, 4, 0] and found["share"].item() == pytest.approx(1 / 3)
    more = small(extra=3).start(moment, None, data)
    assert more["lacked"].tolist() == [3, 7, 0]


@pytest.mark.parametrize("settings", [{}, {"extra": 4}, {"seeds": 1}])
def test_skewed_clients_on_both_engines(settings):
    protocol = PROTOCOL.replace(participation=2)
    runs = [start(small(**settings), protocol, fed=skewed(), engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
    plain = start("fedavg", protocol, fed=skewed()).play().progress.server.model
    assert largest_difference(plain, runs[0].progress.server.model) > 1e-4


def test_the_generator_does_not_depend_on_the_order_of_clients():
    fed = skewed()
    turned = fs.Federation(fed.name, fed.clients[::-1], fed.classes, fed.pipeline)
    one, other = (played_until("train", small(), f).progress.kept["b"] for f in (fed, turned))
    assert largest_difference(one, other) < 1e-12


@pytest.mark.parametrize("other", ["mixup", "fedbn", "fedbr"])
def test_with_other_methods(other):
    beside = fs.methods.make(other, {"fedbr.size": 6} if other == "fedbr" else {})
    runs = [start(small() + beside, fed=skewed(), engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
