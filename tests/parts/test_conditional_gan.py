"""The conditional GAN: its losses by hand, and that it learns two classes apart."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from fedshift import keys
from fedshift.parts.conditional_gan import ConditionalGAN, both_losses
from fedshift.tree import digest

D = torch.float64
GAN = ConditionalGAN(noise=4, hidden=16, steps=5, batch=8)


def critic(slope):
    """A critic whose score is slope times leaky ReLU of the sample's first entry."""
    one = {"one.weight": torch.tensor([[1.0, 0.0]]), "one.bias": torch.zeros(1)}
    two = {"two.weight": torch.ones(1, 1), "two.bias": torch.zeros(1)}
    out = {"out.weight": torch.full((1, 1), slope), "out.bias": torch.zeros(1)}
    return {n: t.to(D).requires_grad_() for n, t in {**one, **two, **out}.items()}


def test_losses_by_hand():
    """Scores are 2 for what is real and 1 for what is made."""
    c, made = critic(1.0), torch.ones(1, 1, dtype=D, requires_grad=True)
    loss = both_losses(c, torch.full((1, 1), 2.0, dtype=D), made, torch.ones(1, 1, dtype=D))
    sp = lambda v: math.log1p(math.exp(v))  # noqa: E731
    assert loss.item() == pytest.approx(sp(-2) + sp(1) + sp(-1), abs=1e-12)
    slope, own = torch.autograd.grad(loss, [c["out.weight"], made])
    sigmoid = lambda v: 1 / (1 + math.exp(-v))  # noqa: E731
    assert slope.item() == pytest.approx(-2 * sigmoid(-2) + sigmoid(1), abs=1e-12)
    assert own.item() == pytest.approx(-sigmoid(-1), abs=1e-12), "up, against the critic"


def data(n=60):
    """Class 0 around -1, class 2 around 3; nobody has class 1; class 2 is rare."""
    y = torch.where(torch.arange(n) % 6 == 0, 2, 0)
    x = torch.where(y == 0, -1.0, 3.0)[:, None] + 0.2 * keys.normal(keys.as_tensor(0), (n, 5), D)
    return x, y


def test_it_learns_classes_apart():
    x, y = data()
    gan = ConditionalGAN(noise=4, hidden=32, steps=600, batch=32, lr=2e-3)
    tensors = gan.train(x, y, 3, key=1)
    z = keys.normal(keys.as_tensor(5), (50, 4), D)
    for c, centre in ((0, -1.0), (2, 3.0)):
        made = gan.make(tensors, z, torch.full((50,), c))
        assert made.mean().item() == pytest.approx(centre, abs=0.5)
        assert x.min() <= made.min() and made.max() <= x.max()


def test_it_follows_from_its_key_and_not_from_the_order_of_samples_of_other_classes():
    x, y = data()
    one = GAN.train(x, y, 3, key=1)
    assert digest(one) == digest(GAN.train(x, y, 3, key=1)) != digest(GAN.train(x, y, 3, key=2))
    turned = torch.argsort(y, descending=True, stable=True)
    assert digest(one) == digest(GAN.train(x[turned], y[turned], 3, key=1))


def test_shapes_and_labels():
    tensors = GAN.initial(keys.as_tensor(0), 3, 7, D)
    z = torch.zeros(3, 4, dtype=D)
    made = GAN.make(tensors, z, torch.arange(3))
    assert made.shape == (3, 7) and made.min() >= 0 and made.max() <= 1
    assert not torch.allclose(made[0], made[1]), "the label matters"
    soft = GAN.make(tensors, z, F.one_hot(torch.arange(3)).to(D))
    assert torch.equal(soft, made)
