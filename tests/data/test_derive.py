"""Federations made from federations: what is kept, what is turned, bad arguments."""

import math

import pytest
import torch

from fedshift import keys
from fedshift.data import derive, partition
from fedshift.errors import BadValue, UnknownName
from fedshift.federation import Client, Federation, Samples


def pool(n=200, classes=4):
    x = torch.arange(n, dtype=torch.float32)[:, None, None, None].expand(n, 1, 3, 3)
    return Samples(x, torch.arange(n) % classes)


def test_subsample_nests_and_leaves_the_test_data():
    fed = partition.deal("toy", pool(), partition.evenly(pool().y, 2))
    half, ten = derive.subsample(fed, 0.5), derive.subsample(fed, 10)
    for client in fed.clients:
        assert len(half[client.name].train) == 30 and len(ten[client.name].train) == 10
        assert half[client.name].test is client.test
        inner, outer = (f[client.name].train.x[:, 0, 0, 0].tolist() for f in (ten, half))
        assert set(inner) < set(outer)
    one = derive.subsample(fed.clients[0], 1.0, splits=("train", "test"))
    assert torch.equal(one.test.x, fed.clients[0].test.x)
    assert len(derive.subsample(fed.clients[0], 1e-9).train) == 1
    for amount in (0, -1, 1.5, math.nan):
        with pytest.raises(BadValue):
            derive.subsample(fed, amount)
    with pytest.raises(UnknownName):
        derive.subsample(fed, 0.5, splits=("tests",))


def test_rotate_clients_turns_every_split():
    x = keys.bits(keys.as_tensor(0), (6, 1, 4, 4)).to(torch.uint8)
    y = torch.zeros(6, dtype=torch.int64)
    split = [Samples(x[i : i + 2], y[i : i + 2]) for i in (0, 2, 4)]
    fed = Federation("t", (Client("a", *split), Client("b", *split)), ("0",))
    turned = derive.rotate_clients(fed, [0, 90])
    for name in ("train", "val", "test"):
        before = getattr(fed["a"], name).x
        assert torch.equal(getattr(turned["a"], name).x, before)
        assert torch.equal(getattr(turned["b"], name).x, torch.rot90(before, 1, (2, 3)))
    assert torch.equal(derive.rotate_clients(fed, {"b": 90})["a"].train.x, fed["a"].train.x)
    with pytest.raises(BadValue, match="3 angles for 2"):
        derive.rotate_clients(fed, [0, 1, 2])
    with pytest.raises(UnknownName):
        derive.rotate_clients(fed, {"c": 90})
