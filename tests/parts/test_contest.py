"""The contest of heads on three linear heads and one feature, worked out by hand.

W1 = I, W2 = [[2, 0], [0, 0]], W3 = [[0, 1], [1, 0]], z = (1, 0.5), y = 0 give logits (1, 0.5),
(2, 0), (0.5, 1) and cross-entropies ln(1 + e^-0.5), ln(1 + e^-2), ln(1 + e^0.5).
"""

from __future__ import annotations

import math

import pytest
import torch

from fedshift.parts.contest import Contest, cross_entropies

D = torch.float64
HEADS = torch.tensor([[[1, 0], [0, 1]], [[2, 0], [0, 0]], [[0, 1], [1, 0]]], dtype=D)
Z, Y = torch.tensor([[1.0, 0.5]], dtype=D), torch.tensor([0])
ME = torch.tensor([1.0, 0.0, 0.0], dtype=D)


def everyone(z):
    return torch.einsum("kcd,bd->kbc", HEADS, z)


def play(contest, step=0, weight=None, total=3, z=Z, y=Y, heads=everyone, me=ME):
    """Value and gradient with respect to the feature."""
    weight = torch.ones(3, 2, dtype=D) if weight is None else weight
    z = z.clone().requires_grad_()
    value = contest(heads(z), y, me, weight, total, torch.tensor(step))
    (grad,) = torch.autograd.grad(value, z)
    return value.item(), grad[0].tolist()


def near(*numbers):
    return pytest.approx(list(numbers), abs=5e-7)


def test_cross_entropies():
    assert cross_entropies(everyone(Z), Y).flatten().tolist() == near(0.474077, 0.126928, 0.974077)


def test_the_two_terms():
    """The others' mean is half of their sum 1.101005, whose gradient is (0.384053, -0.622459)."""
    turn = Contest("uncapped", alternate=True)
    known, towards = play(turn, step=0)
    assert 2 * known == pytest.approx(1.101005, abs=5e-7)
    assert [2 * g for g in towards] == near(0.384053, -0.622459)
    lacked, away = play(turn, step=1)
    # the own head's gradient is (-0.377541, 0.377541), here reversed
    assert lacked == pytest.approx(-0.474077, abs=5e-7)
    assert away == near(0.377541, -0.377541)
    # with the sum in place of the mean: (0.761594, -1), and a step of 0.1 leads to (0.923841, 0.6)
    summed = [2 * t + a for t, a in zip(towards, away)]
    assert summed == near(0.761594, -1.0)
    assert [z - 0.1 * g for z, g in zip((1.0, 0.5), summed)] == near(0.923841, 0.6)


@pytest.mark.parametrize("grl", ["capped", "uncapped"])
def test_joint_and_alternating(grl):
    value, joint = play(Contest(grl))
    assert value == pytest.approx(0.076426, abs=5e-7)
    assert joint == near(0.569567, -0.688770)
    turns = [play(Contest(grl, alternate=True), step)[1] for step in (4, 5)]
    assert [a + b for a, b in zip(*turns)] == pytest.approx(joint, abs=1e-12)
    _, half = play(Contest(grl, strength=0.5))
    expected = [0.192027 + 0.5 * 0.377541, -0.311230 - 0.5 * 0.377541]
    assert half == pytest.approx(expected, abs=1e-6)


def test_above_the_cap_the_own_head_is_left_alone():
    """The cap is ln 2 + 2 = 2.693147; at z = (-4, 0.5) the own cross-entropy is 4.511048."""
    far = torch.tensor([[-4.0, 0.5]], dtype=D)
    assert cross_entropies(everyone(far), Y)[0].item() == pytest.approx(4.511048, abs=5e-7)
    known, towards = play(Contest("capped", alternate=True), 0, z=far)
    value, capped = play(Contest("capped"), z=far)
    assert capped == pytest.approx(towards, abs=1e-12)
    assert value == pytest.approx(known - math.log(2) - 2, abs=1e-12)
    _, uncapped = play(Contest("uncapped"), z=far)
    assert abs(uncapped[0] - towards[0]) > 0.9

    def shifted(z):
        """The same at z: the own head far above the cap there, the others as before."""
        return everyone(z) + torch.tensor([[[0.0, 9.0]], [[0, 0]], [[0, 0]]], dtype=D)

    assert play(Contest("capped"), heads=shifted)[1] == near(0.192027, -0.311230)


def test_the_cap_is_of_the_mean_over_the_batch():
    """One sample above it and one below: their mean of 2.492563 is below, and both count."""
    z = torch.tensor([[-4.0, 0.5], [1.0, 0.5]], dtype=D)
    y = torch.tensor([0, 0])
    assert cross_entropies(everyone(z), y)[0].mean().item() == pytest.approx(2.492563, abs=1e-6)
    assert play(Contest("capped"), z=z, y=y) == play(Contest("uncapped"), z=z, y=y)


class Reversal(torch.autograd.Function):
    """The layer of Ganin and Lempitsky (2015)."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return -grad


def test_the_minus_sign_is_a_reversal_behind_the_generator():
    """In front of it, where the released code has it, a reversal turns no parameter's gradient."""
    noise = torch.tensor([[0.3, -0.2]], dtype=D)
    start = torch.tensor([[1.0, 0.5], [-0.5, 2.0]], dtype=D)

    def gradient(loss):
        w = start.clone().requires_grad_()
        return torch.autograd.grad(loss(w), w)[0]

    def lacked(z):
        return cross_entropies(everyone(z), Y)[0].mean()

    turn = Contest("uncapped", alternate=True)
    step, ones = torch.tensor(1), torch.ones(3, 2, dtype=D)
    ours = gradient(lambda w: turn(everyone(noise @ w), Y, ME, ones, 3, step))
    behind = gradient(lambda w: lacked(Reversal.apply(noise @ w)))
    in_front = gradient(lambda w: lacked(Reversal.apply(noise) @ w))
    plain = gradient(lambda w: lacked(noise @ w))
    assert torch.allclose(ours, behind, atol=1e-15) and ours.abs().max() > 0.01
    assert torch.equal(in_front, plain) and torch.allclose(plain, -ours, atol=1e-15)


def test_released_reverses_nothing():
    assert play(Contest("released"), total=1)[1] == near(0.006513, -0.244919)
    value, grad = play(Contest("released"), total=3)
    assert grad == near(-0.748569, 0.510163)
    assert value == pytest.approx(1.101005 + 3 * 0.474077, abs=2e-6)
    turns = [play(Contest("released", alternate=True), step, total=3)[1] for step in (0, 1)]
    assert turns[0] == near(0.384053, -0.622459)
    assert [g / 3 for g in turns[1]] == near(-0.377541, 0.377541)


def test_a_small_step_lowers_the_loss_of_the_mode():
    """And raises the own cross-entropy where it is reversed, lowers it where it is released."""

    def terms(z):
        own_ce, *others = cross_entropies(everyone(z), Y).flatten().tolist()
        return own_ce, sum(others)

    before = terms(Z)
    for grl, total in (("capped", 3), ("uncapped", 3), ("released", 3), ("released", 1)):
        grad = torch.tensor([play(Contest(grl), total=total)[1]], dtype=D)
        after = terms(Z - 1e-4 * grad)
        if grl == "released":
            assert total * after[0] + after[1] < total * before[0] + before[1]
            # the own head is favoured by its weight; with weight 1 the gradients still conflict
            assert (after[0] < before[0]) == (total == 3)
        else:
            assert after[1] / 2 - after[0] < before[1] / 2 - before[0]
            assert after[0] > before[0] and after[1] < before[1]


def test_weights_by_label_counts():
    """Of the two others, the one that has three times the samples of a class counts three times."""
    y = torch.tensor([0, 1])
    z = torch.cat([Z, torch.tensor([[0.2, -0.3]], dtype=D)])
    weight = torch.tensor([[0.2, 0.5], [0.6, 0.1], [0.2, 0.4]], dtype=D)
    ce = cross_entropies(everyone(z), y)
    turn = Contest("capped", alternate=True)
    known, _ = play(turn, 0, weight, z=z, y=y)
    first = (0.6 * ce[1, 0] + 0.2 * ce[2, 0]) / 0.8
    second = (0.1 * ce[1, 1] + 0.4 * ce[2, 1]) / 0.5
    assert known == pytest.approx(((first + second) / 2).item(), abs=1e-12)
    # released: the mean of the losses times the mean of the weights
    value, _ = play(Contest("released"), 0, weight, total=5, z=z, y=y)
    each = ce.mean(dim=1) * weight.mean(dim=1)  # both labels occur once
    assert value == pytest.approx((5 * each[0] + each[1] + each[2]).item(), abs=1e-12)


def test_who_is_alone_has_nobody_to_learn_from():
    alone = torch.ones(1, dtype=D)
    ones = torch.ones(1, 2, dtype=D)
    contest = Contest(alternate=True)
    value, grad = play(contest, 0, ones, heads=lambda z: everyone(z)[:1], me=alone)
    assert value == 0 and grad == [0, 0]
