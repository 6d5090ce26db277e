"""Passes through a model that must not disturb another: teachers, and looks aside."""

import torch

from fedshift.net import Net
from tests.toys import ToyNet


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
