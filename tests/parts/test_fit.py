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


def test_unused_tensors_stay_and_gradients_may_be_off_outside():
    def loss(tensors, rest, key, step):
        return tensors["w"].sum()

    params = {"w": torch.zeros(2, 1), "unused": torch.ones(2, 1)}
    with torch.no_grad():
        done = fit(loss, params, 2, Optimizer(), KEYS[:2], lr=0.5)
    assert done.params["w"].flatten().tolist() == [-1.0, -1.0]
    assert torch.equal(done.params["unused"], torch.ones(2, 1))
    assert not any(t.requires_grad for t in (*done.params.values(), done.losses))


def test_steps_are_counted_and_draw_in_one_go_what_they_would_alone():
    """The gradient of w is a step's draw, times its number: both ways the same sum."""

    def given(tensors, rest, key, step):
        return tensors["w"] * rest["u"] * step

    def drawing(tensors, rest, key, step):
        return tensors["w"] * keys.uniform(key, (), torch.float64) * step

    def draw(key):
        return {"u": keys.uniform(key, (), torch.float64)}

    params = {"w": torch.zeros(3, dtype=torch.float64)}
    at_once = fit(given, params, 4, Optimizer(), KEYS, lr=1.0, draw=draw).params["w"]
    assert torch.equal(fit(drawing, params, 4, Optimizer(), KEYS, lr=1.0).params["w"], at_once)
    each = [draw(keys.fold_in(KEYS, step))["u"] * step for step in range(4)]
    assert torch.allclose(at_once, -sum(each), atol=1e-15)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_recorded_steps_equal_those_of_the_cpu():
    """Also in later calls, whose memory does not grow with their number."""

    def on_gpu():
        def loss(tensors, rest, key, step):
            x, y = inputs(key, rest)
            return F.cross_entropy(functional_call(skeleton, tensors, (x,)), y) * (1 + step % 2)

        skeleton = copy.deepcopy(networks()[0]).train().to(device)
        params, buffers = stack_module_state([n.to(device) for n in networks()])
        rest = {"shift": torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64, device=device)}
        adam = Optimizer("adam", eps=1e-4)
        return fit(loss, params, 12, adam, KEYS, lr=1e-2, buffers=buffers, rest=rest)

    done = {}
    for device in ("cpu", "cuda"):
        done[device] = on_gpu()
    held = []
    for _ in range(6):
        again = on_gpu()
        held.append(torch.cuda.memory_reserved())
    assert held[-1] <= held[1]
    for part in ("params", "buffers", "state"):
        for name, expected in getattr(done["cpu"], part).items():
            found = getattr(done["cuda"], part)[name]
            assert (found.cpu() - expected).abs().max() < 1e-9, name
            assert torch.equal(getattr(again, part)[name], found), name
    assert (done["cuda"].losses.cpu() - done["cpu"].losses).abs().max() < 1e-9
