"""Passes that must not disturb one another, and what is measured on a model."""

import copy

import pytest
import torch
from torch import nn

import fedshift as fs
from fedshift.errors import BadModel
from fedshift.models.adapter import adapt
from fedshift.net import Net, insert_after, insert_first, measure
from tests.toys import ToyNet, federation, largest_difference


def network() -> ToyNet:
    torch.manual_seed(0)
    return ToyNet(dropout=0.0).double()


def x(scale: float = 1.0) -> torch.Tensor:
    return scale * torch.linspace(-1, 2, 4 * 36, dtype=torch.float64).reshape(4, 1, 6, 6)


def test_a_pass_aside_uses_batch_statistics_and_leaves_no_trace():
    model = network()
    net, mean = Net(model), model.conv[1].running_mean
    found = net.aside().features(x())
    assert not mean.any() and not model.conv[1].num_batches_tracked
    assert torch.equal(found, net.features(x()))
    assert mean.any(), "the plain pass does leave one"
    found.sum().backward()
    assert model.conv[0].weight.grad is not None


def test_a_pass_aside_with_other_tensors():
    model = network()
    net = Net(model)
    zero = {n: torch.zeros_like(p) for n, p in model.hidden.named_parameters(prefix="hidden")}
    found = net.aside(zero, grad=False).features(x())
    assert not found.any() and not found.requires_grad
    assert model.hidden[2].weight.any()


def test_what_moves_buffers_later_does_not_change_a_gradient_at_eval():
    model = network()
    net = Net(model)
    expected = torch.autograd.grad(
        net.at({}, grad=True).features(x()).square().sum(), model.conv[0].weight
    )[0]
    loss = net.at({}, grad=True).features(x()).square().sum()
    net.features(x(5.0))  # moves running statistics before the backward pass
    assert torch.equal(torch.autograd.grad(loss, model.conv[0].weight)[0], expected)


def test_a_pass_with_changes_behind_stages():
    model = network()
    net, plain = Net(model), Net(model).at({})
    found = plain.features(x(), {"conv": torch.zeros_like, "hidden": lambda z: z + 1.0})
    still = torch.zeros(4, 4, 3, 3, dtype=torch.float64)
    assert torch.equal(found, model.hidden(still) + 1.0), "the second sees what the first changed"
    assert torch.equal(plain.features(x()), plain.output(x()).z), "changes end with their pass"
    insert_after(model, "hidden", "halved", Halved())
    assert torch.equal(net.features(x(), {"hidden": lambda z: z + 1.0}), net.features(x()) + 1.0)


class Halved(torch.nn.Module):
    def forward(self, z):
        return z / 2


def test_a_layer_in_front_of_the_model():
    model = network()
    before = copy.deepcopy(model).eval()
    insert_first(model, (1, 6, 6), "halved", Halved())
    insert_first(model, (1, 6, 6), "more", Halved())
    for one in (model.eval(), copy.deepcopy(model)):
        assert torch.equal(one(x(4.0)), before(x()))
    one.halved.forward = lambda z: z
    assert torch.equal(one(x(2.0)), before(x())) and torch.equal(model(x(4.0)), before(x()))
    with pytest.raises(BadModel, match="has a module 'halved' already"):
        insert_first(model, (1, 6, 6), "halved", Halved())


def test_a_layer_in_front_needs_a_stage_that_takes_the_inputs():
    body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 4), torch.nn.Linear(4, 3))
    model = adapt(body, stages=("1",), head="2")
    with pytest.raises(BadModel, match=r"'body\.1' takes something else: name the part"):
        insert_first(model, (1, 6, 6), "halved", Halved())
    model.stages = ()
    with pytest.raises(BadModel, match="there is none"):
        insert_first(model, (1, 6, 6), "halved", Halved())


def test_stages_are_named_in_the_order_in_which_they_run():
    model = network()
    assert list(measure(model, (1, 6, 6))[1]) == ["conv", "hidden"]
    model.stages = ("hidden", "conv")
    model.features = lambda x: model.hidden(model.conv(x))
    with pytest.raises(BadModel, match="run as conv, hidden: name them in that order"):
        measure(model, (1, 6, 6))


class Tied(ToyNet):
    """Two layers of one weight, and a head."""

    stages = ()

    def __init__(self) -> None:
        super().__init__(dropout=0.0)
        self.conv = nn.Flatten()
        self.hidden = nn.Linear(36, 36)
        self.again = nn.Linear(36, 36)
        self.again.weight = self.hidden.weight
        self.head = nn.Linear(36, 3)

    def features(self, x):
        return self.again(self.hidden(self.conv(x)).tanh()).tanh()


def test_a_weight_that_two_layers_share_is_one_weight_on_every_engine():
    """One client, whole batches: torch's own SGD on the plain module says what must come out."""
    protocol = fs.Protocol(rounds=1, steps=3, batch=5, lr=0.1, momentum=0.5)
    fed = federation((5,))
    runs = [
        fs.Run(fed, "fedavg", protocol, Tied, engine=e, workers=1, dtype="float64", device="cpu")
        for e in ("loop", "stacked")
    ]
    plain = Tied().double()
    plain.load_state_dict(runs[0].progress.server.model, strict=False)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        samples = fed.clients[0].train
        nn.functional.cross_entropy(plain(samples.x), samples.y).backward()
        optimizer.step()
    wanted = {n: t.detach() for n, t in plain.named_parameters()}
    assert "again.weight" not in wanted and "again.bias" in wanted
    for run in runs:
        assert largest_difference(run.play().progress.server.model, wanted) < 1e-12
        assert run.engine_name == ("loop" if run is runs[0] else "stacked")
