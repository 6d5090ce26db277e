"""Stacked server-side training against one network at a time under torch's own optimizer."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state
from torch.nn import functional as F

from fedshift import keys
from fedshift.optim import Optimizer
from fedshift.parts.fit import fit
from fedshift.tree import row

KEYS = torch.stack([keys.as_tensor(k) for k in (5, 6, 7)])


def networks():
    torch.manual_seed(0)
    nets = [
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)) for _ in KEYS
    ]
    return [n.double() for n in nets]


def inputs(key, rest):
    x = keys.normal(key, (8, 3), torch.float64) + rest["shift"]
    return x, (x[:, 0] > x[:, 1]).long()


def trained(rate=1e-2, steps=6, **given):
    nets = networks()
    skeleton = copy.deepcopy(nets[0]).train()
    params, buffers = stack_module_state(nets)
    rest = {"shift": torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)}

    def loss(tensors, rest, key, step):
        x, y = inputs(key, rest)
        return F.cross_entropy(functional_call(skeleton, tensors, (x,)), y)

    given = {"params": params, "buffers": buffers, **given}
    optimizer = Optimizer("adam", weight_decay=1e-2)
    return fit(loss, given.pop("params"), steps, optimizer, KEYS, lr=rate, rest=rest, **given)


def test_each_row_is_a_network_trained_alone_by_torch():
    done = trained()
    for k, net in enumerate(networks()):
        adam = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-2)
        for step in range(6):
            x, y = inputs(keys.fold_in(KEYS[k], step), {"shift": float(k)})
            value = F.cross_entropy(net(x), y)
            assert value.item() == pytest.approx(done.losses[step, k].item(), abs=1e-12)
            adam.zero_grad()
            value.backward()
            adam.step()
        mine = {**row(done.params, k), **row(done.buffers, k)}
        for name, tensor in net.state_dict().items():
            assert (mine[name] - tensor).abs().max() < 1e-11, name


def test_it_goes_on_where_it_stopped():
    def loss(tensors, rest, key, step):
        return (tensors["w"] ** 2).sum()

    params = {"w": torch.ones(3, 2)}
    adam = Optimizer("adam")
    whole = fit(loss, params, 5, adam, KEYS, lr=0.1)
    half = fit(loss, params, 3, adam, KEYS, lr=0.1)
    again = fit(loss, half.params, 2, adam, KEYS, lr=0.1, state=half.state)
    fresh = fit(loss, half.params, 2, adam, KEYS, lr=0.1)
    assert torch.equal(again.params["w"], whole.params["w"])
    assert again.state["step"].tolist() == [5.0, 5.0, 5.0]
    assert not torch.equal(fresh.params["w"], whole.params["w"])


def test_nothing_given_is_changed_and_no_step_changes_nothing():
    params, buffers = stack_module_state(networks())
    before = {n: t.detach().clone() for n, t in {**params, **buffers}.items()}
    trained(params=params, buffers=buffers)
    none = trained(steps=0, params=params, buffers=buffers)
    for name, tensor in before.items():
        assert torch.equal(tensor, {**params, **buffers}[name])
        assert torch.equal(tensor, {**none.params, **none.buffers}[name])
    assert none.losses.shape == (0, 3)


def test_a_rate_for_each_step_and_unused_tensors():
    def loss(tensors, rest, key, step):
        return tensors["w"].sum()

    params = {"w": torch.zeros(2, 1), "unused": torch.ones(2, 1)}
    with torch.no_grad():  # a server may well hold gradients off around it
        done = fit(loss, params, 2, Optimizer(), KEYS[:2], lr=lambda step: 10.0**-step)
    assert done.params["w"].flatten().tolist() == pytest.approx([-1.1, -1.1])
    assert torch.equal(done.params["unused"], torch.ones(2, 1))
