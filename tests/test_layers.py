"""Fast layers of stacked clients against vmap's own rules, in float64."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedshift import layers
from fedshift.layers import fast

CLIENTS = 3
FORMS = [layers.grouped, layers.singly, layers.unfolded]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def both(f, dims, *tensors: Tensor):
    """Outputs and gradients of a mapped function, under vmap's rules and in the fast mode."""

    def found(context):
        leaves = [t.detach().clone().requires_grad_() for t in tensors]

        def inside(*args):
            with context():
                return f(*args)

        out = torch.vmap(inside, in_dims=dims)(*leaves)
        weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
        return out, *torch.autograd.grad((out * weights).sum(), leaves)

    return found(contextlib.nullcontext), found(fast)


def same(a, b) -> bool:
    return all(torch.allclose(x, y, rtol=1e-11, atol=1e-11) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stride, padding", [((1, 1), (0, 0)), ((2, 1), (1, 2)), ((3, 2), (2, 0))])
def test_all_forms_are_the_convolution(form, stride, padding):
    x = torch.randn(CLIENTS, 2, 4, 9, 8).double()
    w, b = torch.randn(CLIENTS, 5, 4, 3, 2).double(), torch.randn(CLIENTS, 5).double()
    for bias in (b, None):
        wanted = [
            F.conv2d(x[k], w[k], None if bias is None else bias[k], stride, padding)
            for k in range(CLIENTS)
        ]
        torch.testing.assert_close(form(x, w, bias, stride, padding), torch.stack(wanted))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "dims", [(0, 0, 0), (0, 0, None), (None, 0, 0), (0, None, None), (1, 0, 0)]
)
def test_convolutions_whatever_is_mapped(form, dims, monkeypatch):
    taken = []
    monkeypatch.setattr(layers, "_form", lambda *seen: (taken.append(seen), form)[1])
    shapes = ((2, 4, 7, 7), (6, 4, 3, 3), (6,))
    tensors = [
        torch.randn(s).double() if d is None else torch.randn(CLIENTS, *s).double().movedim(0, d)
        for s, d in zip(shapes, dims)
    ]
    plain, quick = both(lambda x, w, b: F.conv2d(x, w, b, 2, 1), dims, *tensors)
    assert same(plain, quick)
    assert bool(taken) == (dims[1] is not None)


@pytest.mark.parametrize(
    "dims", [(0, 0, 0), (0, 0, None), (None, 0, 0), (0, None, None), (1, 1, 0)], ids=str
)
@pytest.mark.parametrize("lead", [(4,), (4, 3)], ids=["samples", "tokens"])
def test_linear_whatever_is_mapped(dims, lead):
    shapes = ((*lead, 5), (6, 5), (6,))
    tensors = [
        torch.randn(s).double() if d is None else torch.randn(CLIENTS, *s).double().movedim(0, d)
        for s, d in zip(shapes, dims)
    ]
    assert same(*both(F.linear, dims, *tensors))
    assert same(*both(lambda x, w: F.linear(x, w), dims[:2], *tensors[:2]))


def test_gradients_of_weights_lie_as_the_weights_do():
    x, z = torch.randn(CLIENTS, 2, 4, 9, 9), torch.randn(CLIENTS, 2, 5)
    layers_of = {
        F.conv2d: (x, torch.randn(CLIENTS, 1400, 4, 3, 3)),
        F.linear: (z, torch.randn(CLIENTS, 6, 5)),
    }
    for layer, (inputs, w) in layers_of.items():

        def run(x, w, layer=layer):
            with fast():
                return layer(x, w)

        w.requires_grad_()
        (g,) = torch.autograd.grad(torch.vmap(run)(inputs, w).square().sum(), w)
        assert g.stride() == w.stride()


@pytest.mark.parametrize(
    "layer",
    [
        nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
    ],
    ids=str,
)
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2)], ids=["KBC", "KCB", "BKC"])
def test_layers_take_maps_in_any_order(layer, order):
    layer = layer.double().train()
    lies = torch.randn(CLIENTS, 5, 4, 8, 8).double().permute(*order, 3, 4).contiguous()
    x = lies.permute(*(order.index(d) for d in range(3)), 3, 4)
    params = {n: torch.randn(CLIENTS, *p.shape).double() for n, p in layer.named_parameters()}
    names = list(params)

    def run(x, *values):
        zero = 0 * x.detach().sum()  # makes each client's statistics its own
        own = {
            n: b + zero if b.is_floating_point() else b.clone() for n, b in layer.named_buffers()
        }
        out = torch.func.functional_call(layer, (dict(zip(names, values)), own), (x,))
        moved = [own[n].sum() for n in own if n.startswith("running")]
        return out * (1 + sum(moved))

    assert same(*both(run, 0, x, *params.values()))


def test_batch_norm_moves_each_clients_statistics_and_evaluates_on_them():
    norm = nn.BatchNorm1d(4).double()
    x = torch.randn(CLIENTS, 6, 4).double()
    mean, var = torch.zeros(CLIENTS, 4).double(), torch.ones(CLIENTS, 4).double()

    def step(x, mean, var):
        with fast():
            return F.batch_norm(x, mean, var, norm.weight, norm.bias, True, 0.1, 1e-5)

    torch.vmap(step)(x, mean, var)
    for k in range(CLIENTS):
        alone = nn.BatchNorm1d(4).double()
        alone(x[k])
        torch.testing.assert_close(mean[k], alone.running_mean)
        torch.testing.assert_close(var[k], alone.running_var)

    def look(x, w, b, k):
        here = (t.index_select(0, k.detach().long()).squeeze(0) for t in (mean, var))
        return F.batch_norm(x, *here, w, b, False, 0.1, 1e-5) + 0 * k

    rest = (torch.randn(CLIENTS, 4).double(), torch.randn(CLIENTS, 4).double())
    assert same(*both(look, 0, x, *rest, torch.arange(CLIENTS).double()[:, None]))


def test_gradients_inside_the_mapped_function():
    """As methods take them that replace the gradient; a second one through the first, too."""
    network = nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3),
        nn.Flatten(),
        nn.BatchNorm1d(8),
    ).double()
    params = {n: torch.randn(CLIENTS, *p.shape).double() for n, p in network.named_parameters()}
    buffers = {n: b.expand(CLIENTS, *b.shape) for n, b in network.named_buffers()}
    x = torch.randn(CLIENTS, 5, 2, 6, 6).double()

    def sharpness(context, params, buffers, x):
        def loss(p):
            own = {n: b.clone() for n, b in buffers.items()}
            with context():
                return torch.func.functional_call(network, (p, own), (x,)).square().mean()

        def twice(p):
            return sum(g.square().sum() for g in torch.func.grad(loss)(p).values())

        return torch.func.grad(loss)(params), torch.func.grad(twice)(params)

    plain, quick = (
        torch.vmap(lambda *a, c=c: sharpness(c, *a))(params, buffers, x)
        for c in (contextlib.nullcontext, fast)
    )
    for a, b in zip(plain, quick):
        assert all(torch.allclose(a[n], b[n], rtol=1e-9, atol=1e-9) for n in a)
