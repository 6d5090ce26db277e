"""The conditional generator of features: sizes, the reparametrised draw, modes, stacks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedshift import keys
from fedshift.parts.latent_generator import (
    BUFFERS,
    LatentGenerator,
    divergence,
    reparametrised,
    split,
)
from fedshift.tree import row

KEY = keys.as_tensor(1)
KIND = LatentGenerator(noise=5)
Y = torch.tensor([0, 2, 1, 1, 2, 0])


def small(key=KEY):
    return KIND.initial(key, classes=3, hidden=8, width=4, dtype=torch.float64)


def make(kind, tensors, y=Y, key=KEY, training=False):
    return kind(tensors, y, kind.draw(key, len(y), tensors), training)


@pytest.mark.parametrize(
    ("classes", "hidden", "count"), [(10, 256, 27_968), (26, 256, 32_064), (2, 128, 12_992)]
)
def test_numbers_of_parameters(classes, hidden, count):
    """(32 + C) h + h, 2 h of the norm, and twice 32 h + 32, for MNIST, EMNIST and CelebA."""
    tensors = LatentGenerator().initial(KEY, classes, hidden, 32)
    assert sum(t.numel() for t in split(tensors)[0].values()) == count


def test_a_draw_by_hand():
    mean = torch.tensor([0.5, -1.0], dtype=torch.float64)
    log_variance = torch.tensor([0.2, -0.4], dtype=torch.float64)
    e = torch.tensor([1.0, -2.0], dtype=torch.float64)
    # 0.5 + exp(0.1), -1 - 2 exp(-0.2)
    drawn = reparametrised(mean, log_variance, e)
    assert drawn.tolist() == pytest.approx([1.605171, -2.637462], abs=5e-7)
    # the released code: 0.5 + exp(0.025), -1 - 2 exp(-0.05)
    tied = reparametrised(mean, 0.1 * mean, e)
    assert tied.tolist() == pytest.approx([1.525315, -2.902459], abs=5e-7)
    assert divergence(mean, log_variance).item() == pytest.approx(0.670861, abs=5e-7)


def test_the_heads_decide_the_draw():
    tensors = small()
    for tied in (False, True):
        made = make(LatentGenerator(noise=5, tied=tied), tensors)
        e = keys.normal(keys.fold_in(KEY, "latent"), (6, 4), torch.float64)
        assert torch.allclose(made.z, made.mean + e * torch.exp(0.5 * made.log_variance))
        assert torch.allclose(made.log_variance, 0.1 * made.mean) == tied


def test_train_mode_normalises_by_the_batch_and_moves_the_statistics():
    tensors = small()
    before = {n: t.clone() for n, t in tensors.items()}
    a = make(KIND, tensors)
    assert all(torch.equal(before[n], tensors[n]) for n in tensors)
    b = make(KIND, tensors, training=True)
    assert not torch.allclose(a.mean, b.mean)
    changed = {n for n in tensors if not torch.equal(before[n], tensors[n])}
    assert changed == set(BUFFERS)


def test_initial_tensors_are_distributed_as_those_of_torch():
    """Weights and biases of nn.Linear are uniform within 1 / sqrt(inputs)."""
    tensors = LatentGenerator(noise=32).initial(KEY, 10, 256, 32)
    for name, inputs in (("hidden", 42), ("mean", 256), ("log_variance", 256)):
        bound = 1 / math.sqrt(inputs)
        reference = nn.Linear(inputs, 256).weight
        for values in (tensors[f"{name}.weight"], reference):
            assert 0.99 * bound < values.abs().max() <= bound
            assert values.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
        assert 0.5 * bound < tensors[f"{name}.bias"].abs().max() <= bound


def test_a_stack_is_many_generators():
    each = torch.stack([keys.as_tensor(k) for k in (1, 2)])
    stacked = small(each)
    made = torch.vmap(lambda t, k: make(KIND, t, key=k).z)(stacked, each)
    drawn = KIND.draw(each, len(Y), stacked)
    assert torch.equal(torch.vmap(lambda t, d: KIND(t, Y, d).z)(stacked, drawn), made)
    for k in range(2):
        alone = small(each[k])
        assert all(torch.equal(row(stacked, k)[n], alone[n]) for n in alone)
        assert torch.allclose(made[k], make(KIND, alone, key=each[k]).z)
        renewed = KIND.renewed(stacked, each)
        assert all(torch.equal(row(renewed, k)[n], alone[n]) for n in alone)
    assert not torch.allclose(made[0], made[1])


def test_noise_and_soft_labels():
    tensors = small()
    plain = make(LatentGenerator(noise=5), tensors)
    uniform = make(LatentGenerator(noise=5, uniform=True), tensors)
    assert not torch.allclose(plain.mean, uniform.mean)
    soft = torch.nn.functional.one_hot(Y, 3).double()
    assert torch.equal(make(LatentGenerator(noise=5), tensors, soft).z, plain.z)
    # the noise alone, seen through a hidden layer that shows its first column as it is
    for kind, low in ((LatentGenerator(5, uniform=True), 0.0), (LatentGenerator(5), -10.0)):
        show = {n: torch.zeros_like(t) for n, t in tensors.items()}
        show["hidden.weight"][0, 0] = 1
        show["hidden.bias"][0] = 20  # keeps it clear of the ReLU
        show["norm.weight"] += 1
        show["norm.running_var"] += 1 - 1e-5
        show["mean.weight"][0, 0] = 1
        seen = make(kind, show, Y.repeat(200)).mean[:, 0] - 20
        assert seen.min() >= low and (seen.min() < 0) == (low < 0)
        expected = (0.5, 1 / 12) if low == 0.0 else (0.0, 1.0)
        assert seen.mean().item() == pytest.approx(expected[0], abs=0.1)
        assert seen.var().item() == pytest.approx(expected[1], rel=0.15)
