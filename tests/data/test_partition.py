"""Partitions: nothing lost, nothing dealt twice, the promised distributions, bad arguments."""

import math

import pytest
import torch

from fedshift.data import partition
from fedshift.errors import BadData, BadValue, UnknownName
from fedshift.federation import Samples

Y = torch.arange(2000) % 10


def pool(n=200, classes=4):
    x = torch.arange(n, dtype=torch.float32)[:, None, None, None].expand(n, 1, 3, 3)
    return Samples(x, torch.arange(n) % classes)


DEALERS = {
    "flat": lambda seed: partition.dirichlet(Y, 7, 0.5, seed=seed),
    "prior": lambda seed: partition.dirichlet(Y, 7, 0.5, seed=seed, concentration="prior"),
    "shards": lambda seed: partition.shards(Y, 7, 3, seed=seed),
    "evenly": lambda seed: partition.evenly(Y, 7, seed=seed),
}


@pytest.mark.parametrize("name", DEALERS)
def test_everything_is_dealt_once_and_the_seed_decides(name):
    parts = DEALERS[name](0)
    assert len(parts) == 7
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(Y)))
    assert all(torch.equal(a, b) for a, b in zip(parts, DEALERS[name](0)))
    assert not all(torch.equal(a, b) for a, b in zip(parts, DEALERS[name](1)))


def test_flat_shares_have_the_moments_of_a_dirichlet():
    alpha, clients = 0.5, 4
    shares = torch.cat(
        [
            torch.stack([torch.bincount(Y[p], minlength=10) for p in parts]).double() / 200
            for parts in (
                partition.dirichlet(Y, clients, alpha, seed=s, minimum=0) for s in range(60)
            )
        ],
        dim=1,
    )
    variance = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert float(shares.mean()) == pytest.approx(0.25)
    assert float(shares.var()) == pytest.approx(variance, rel=0.08)


def test_flat_minimum_is_kept_or_refused(monkeypatch):
    parts = partition.dirichlet(Y, 10, 0.05, minimum=30)
    assert min(map(len, parts)) >= 30
    monkeypatch.setattr(partition, "_TRIES", 20)
    with pytest.raises(BadData, match="raise `alpha`"):
        partition.dirichlet(Y, 100, 0.001, minimum=20)


def test_prior_gives_equal_sizes_and_first_client_the_dirichlet_moments():
    first = []
    for seed in range(50):
        parts = partition.dirichlet(Y, 10, 5.0, seed=seed, concentration="prior")
        assert {len(p) for p in parts} == {200}
        first.append(torch.bincount(Y[parts[0]], minlength=10).double() / 200)
    shares = torch.stack(first)
    # q ~ Dirichlet(5 * 0.1 per class), then 200 draws by q; few runs exhaust a class (200 samples)
    dirichlet = 0.1 * 0.9 / (5.0 + 1)
    variance = dirichlet + (0.1 * 0.9 - dirichlet) / 200
    assert float(shares.mean()) == pytest.approx(0.1)
    assert float(shares.var()) == pytest.approx(variance, rel=0.25)


def test_prior_survives_exhausted_classes():
    # alpha * p = 0.01 a class: shares underflow to one class, which runs out again and again
    parts = partition.dirichlet(Y, 3, 0.1, concentration="prior")
    assert [len(p) for p in parts] == [667, 667, 666]
    used = [int((torch.bincount(Y[p], minlength=10) > 0).sum()) for p in parts]
    assert max(used[:2]) <= 6  # 4 classes fill a client; even shares would touch all ten


def test_smaller_alpha_is_more_skewed():
    def largest(alpha):
        parts = partition.dirichlet(Y, 5, alpha, minimum=1)
        return sum(float(torch.bincount(Y[p]).max()) / len(p) for p in parts) / 5

    assert largest(100.0) < 0.14 < 0.2 < largest(0.1)


def test_shards_bound_the_number_of_classes():
    parts = partition.shards(Y, 10, 2)
    assert {len(p) for p in parts} == {200}
    assert max(len(set(Y[p].tolist())) for p in parts) <= 2


def test_evenly_gives_everyone_the_same_mix():
    for part in partition.evenly(Y, 7):
        counts = torch.bincount(Y[part], minlength=10)
        assert int(counts.min()) >= 28 and int(counts.max()) <= 29  # 200 / 7


def test_by_domain_keeps_order():
    parts = partition.by_domain(torch.tensor([3, 1, 3]))
    assert list(parts) == ["3", "1"]
    assert parts["3"].tolist() == [0, 2]


def test_split_is_stratified_and_exact():
    y = torch.cat([torch.zeros(50), torch.ones(20), torch.full((3,), 2)]).long()
    samples = Samples(torch.arange(73)[:, None].double(), y)
    parts = partition.split(samples, (0.6, 0.2, 0.2), seed=3)
    assert [len(p) for p in parts] == [44, 14, 15]
    for share, part in zip((0.6, 0.2, 0.2), parts):
        counts = torch.bincount(part.y, minlength=3)
        for label, size in enumerate((50, 20, 3)):
            assert abs(int(counts[label]) - share * size) < 1.01
    together = torch.cat([p.x for p in parts]).flatten().sort().values
    assert torch.equal(together, torch.arange(73).double())
    for part in parts:
        assert torch.equal(part.y, y[part.x.flatten().long()])
    assert not torch.equal(parts[0].x, partition.split(samples, (0.6, 0.2, 0.2), seed=4)[0].x)


def test_split_without_stratification_is_random():
    samples = Samples(torch.zeros(1000, 1), torch.arange(1000) % 2)
    balance = {
        int(partition.split(samples, seed=s, stratified=False)[0].y.sum()) for s in range(10)
    }
    assert len(balance) > 3
    assert {int(partition.split(samples, seed=s)[0].y.sum()) for s in range(3)} == {300}


def test_split_of_pixel_labels_and_of_a_single_sample():
    masks = Samples(torch.zeros(10, 1, 2, 2), torch.zeros(10, 2, 2, dtype=torch.int64))
    assert [len(p) for p in partition.split(masks)] == [6, 2, 2]
    single = Samples(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64))
    assert [len(p) for p in partition.split(single, (0.1, 0.1, 0.8))] == [1, 0, 0]


def test_deal_makes_a_federation():
    fed = partition.deal(
        "toy", pool(), partition.evenly(pool().y, 12), recommended={"model": "mlp"}
    )
    assert fed.names[0] == "client-00" and fed.names[-1] == "client-11"
    assert fed.classes == ("0", "1", "2", "3") and fed.recommended["model"] == "mlp"
    every = [getattr(c, s).x[:, 0, 0, 0] for c in fed.clients for s in ("train", "val", "test")]
    assert torch.equal(torch.cat(every).sort().values, torch.arange(200.0))
    with pytest.raises(BadData, match="'b' of 'toy'"):
        partition.deal("toy", pool(), {"a": torch.arange(4), "b": torch.arange(0)})


def test_a_client_does_not_depend_on_who_else_is_dealt_to():
    index = torch.arange(50)
    both = partition.deal("t", pool(), {"a": index, "b": index + 50})
    alone = partition.deal("t", pool(), {"a": index})
    assert torch.equal(both["a"].train.x, alone["a"].train.x)


@pytest.mark.parametrize(
    "call",
    [
        lambda: partition.dirichlet(Y, 0, 1.0),
        lambda: partition.dirichlet(Y, 3000, 1.0),
        lambda: partition.dirichlet(Y, 5, 0.0),
        lambda: partition.dirichlet(Y, 5, math.inf),
        lambda: partition.dirichlet(Y, 5, 1.0, minimum=1000),
        lambda: partition.dirichlet(Y.double(), 5, 1.0),
        lambda: partition.dirichlet(Y.reshape(2, -1), 5, 1.0),
        lambda: partition.dirichlet(Y, 5, 1.0, concentration="priors"),
        lambda: partition.shards(Y, 5, 0),
        lambda: partition.shards(Y, 50, 100),
        lambda: partition.split(pool(), (0.5, 0.5)),
        lambda: partition.split(pool(), (0.5, 0.4, 0.2)),
        lambda: partition.split(pool(), (0.0, 0.5, 0.5)),
        lambda: partition.split(pool(), (1.2, -0.2, 0.0)),
    ],
)
def test_bad_arguments(call):
    with pytest.raises((BadValue, UnknownName)) as error:
        call()
    assert "\n" not in str(error.value)
