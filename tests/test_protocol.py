"""The protocol: local work, who takes part, rates over rounds."""

from __future__ import annotations

import math

import pytest

import fedshift as fs
from fedshift import Protocol, data
from fedshift.errors import BadValue
from fedshift.recommended import recommended_protocol
from tests.methods.test_battery import start


@pytest.mark.parametrize(
    ("n", "epochs", "batch", "steps"),
    [(100, 1, 32, 4), (100, 3, 32, 12), (96, 1, 32, 3), (5, 2, 32, 2), (1, 1, 1, 1)],
)
def test_epochs_are_of_full_batches(n, epochs, batch, steps):
    protocol = Protocol(epochs=epochs, batch=batch)
    assert protocol.local_work(n) == steps == epochs * protocol.epoch_length(n)


def test_steps_go_before_epochs():
    protocol = Protocol(steps=7, epochs=3, batch=4)
    assert protocol.local_work(1000) == protocol.local_work(1) == 7
    assert protocol.epoch_length(10) == 3


@pytest.mark.parametrize(
    ("participation", "clients", "count"),
    [
        (1.0, 7, 7),
        (0.5, 4, 2),
        (0.5, 5, 3),  # 2.5: halves go up
        (0.5, 3, 2),  # 1.5
        (0.1, 5, 1),  # 0.5
        (0.01, 5, 1),  # never nobody
        (0.3, 10, 3),
        (2, 5, 2),
        (5, 3, 3),
        (1, 3, 3),
    ],
)
def test_how_many_take_part(participation, clients, count):
    assert Protocol(participation=participation).participants(clients) == count


def test_who_takes_part_is_drawn_anew_each_round():
    protocol = Protocol(rounds=12, steps=1, batch=5, lr=0.01, participation=2, eval_every=12)
    taken = [
        line["participants"]
        for line in start("fedavg", protocol).play().lines
        if not line["client"]
    ]
    assert all(len(set(p)) == 2 and p == sorted(p) for p in taken)
    assert len({tuple(p) for p in taken}) == 3, "every pair of the three comes up"
    assert taken == [
        line["participants"]
        for line in start("fedavg", protocol).play().lines
        if not line["client"]
    ]


def test_rates():
    constant, cosine, falling = (
        Protocol(rounds=4, lr=0.2, schedule=s, decay=0.5)
        for s in ("constant", "cosine", "exponential")
    )
    assert [constant.rate(r) for r in range(4)] == [0.2] * 4
    half = 0.1 * (1 + math.sqrt(0.5))
    assert [cosine.rate(r) for r in range(4)] == pytest.approx([0.2, half, 0.1, 0.2 - half])
    assert [falling.rate(r) for r in range(4)] == [0.2, 0.1, 0.05, 0.025]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rounds": 0}, "protocol.rounds is 0: allowed is at least 1"),
        ({"batch": 0}, "protocol.batch is 0"),
        ({"lr": -1}, "protocol.lr is -1"),
        ({"optimizer": "rmsprop"}, "choose from sgd | adam | adamw"),
        ({"weights": "equal"}, "choose from uniform | samples"),
        ({"participation": 0}, "at least one client must take part"),
        ({"participation": 2.5}, "a share of the clients"),
        ({"nesterov": True}, "nesterov needs momentum"),
        ({"select": "best"}, "choose from last | best-val | best-test | top5-test"),
    ],
)
def test_what_is_not_allowed(values, message):
    with pytest.raises(BadValue) as error:
        Protocol(**values)
    assert message in str(error.value)


def test_replace_checks_too():
    protocol = Protocol(rounds=3, lr=0.5)
    assert protocol.replace(lr="0.25") == Protocol(rounds=3, lr=0.25) and protocol.lr == 0.5
    with pytest.raises(BadValue, match=r"protocol.rounds"):
        protocol.replace(rounds=-1)


def test_what_the_data_recommend():
    fed = data.load("shifted-digits")
    protocol = recommended_protocol(fed)
    given = {n: v for n, v in fed.recommended.items() if n != "model"}
    assert given and all(getattr(protocol, n) == v for n, v in given.items())
    assert fs.Run(fed, "fedavg", workers=1).protocol == protocol != start("fedavg").protocol
