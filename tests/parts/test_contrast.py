"""Cosine contrast against numbers worked out by hand, and what happens at its edges."""

import math

import pytest
import torch

from fedshift.errors import BadValue
from fedshift.parts.contrast import (
    check_temperature,
    cosine,
    infonce,
    projector,
    scaled,
    supervised,
    two_way,
)

E1 = torch.tensor([[1.0, 2.0], [0.0, 1.0]], dtype=torch.float64)
E2 = torch.tensor([[2.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
E3 = torch.tensor([[-1.0, 1.0], [0.0, 2.0]], dtype=torch.float64)


def test_cosines():
    # (2 + 2) / (sqrt 5 sqrt 5) = 4/5 and 1/sqrt 2; (-1 + 2) / (sqrt 5 sqrt 2) = 1/sqrt 10 and 1
    assert cosine(E1, E2).tolist() == pytest.approx([0.8, 0.707107], abs=1e-6)
    assert cosine(E1, E3).tolist() == pytest.approx([0.316228, 1.0], abs=1e-6)


def test_cosines_keep_their_precision_under_autocast():
    a, b = torch.randn(2, 9, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = cosine(a, b)
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), cosine(a.double(), b.double()), atol=1e-6)


def test_a_projector_is_three_layers_with_relu_between():
    head = projector(4, hidden=6, out=2)
    z = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    (w1, b1), (w2, b2), (w3, b3) = ((m.weight, m.bias) for m in head[::2])
    by_hand = ((z @ w1.T + b1).relu() @ w2.T + b2).relu() @ w3.T + b3
    assert torch.allclose(head(z), by_hand, atol=1e-6)
    assert (w1.shape, w2.shape, w3.shape) == ((6, 4), (6, 6), (2, 6))


@pytest.mark.parametrize(
    ("tau", "mode", "rows", "mean"),
    [
        # softplus(2 (0.316228 - 0.8)) = log(1 + e^-0.967544), softplus(2 (1 - 0.707107))
        (2.0, "multiply", (0.322094, 1.028334), 0.675214),
        # the same with 1/2 for 2
        (2.0, "divide", (0.579500, 0.769049), 0.674274),
        (1.0, "multiply", None, 0.665257),
        (1.0, "divide", None, 0.665257),
    ],
)
def test_two_way(tau, mode, rows, mean):
    loss = two_way(scaled(cosine(E1, E2), tau, mode), scaled(cosine(E1, E3), tau, mode))
    assert loss.mean().item() == pytest.approx(mean, abs=1e-6)
    if rows:
        assert loss.tolist() == pytest.approx(rows, abs=1e-6)


def test_two_way_is_the_log_of_a_share_and_does_not_overflow():
    s = torch.tensor([0.3, -1.2, 300.0], dtype=torch.float64)
    a = torch.tensor([0.3, 0.7, -300.0], dtype=torch.float64)
    plain = -torch.log(s.exp() / (s.exp() + a.exp()))
    assert torch.allclose(two_way(s, a), plain)
    assert two_way(s, a)[0].item() == pytest.approx(math.log(2), abs=1e-6)  # 0.693147
    assert two_way(a.float() * 1e3, s.float() * 1e3)[2] == 600_000.0


def test_rows_of_zeros_have_finite_gradients():
    a = torch.zeros(2, 3, requires_grad=True)
    b = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]], requires_grad=True)
    two_way(cosine(a, b), cosine(a, -b)).sum().backward()
    assert torch.isfinite(a.grad).all() and torch.isfinite(b.grad).all()


def test_infonce_with_one_negative_is_two_way():
    scores = torch.stack((cosine(E1, E2), cosine(E1, E3)), dim=1)
    positive = torch.tensor([[True, False], [True, False]])
    assert torch.allclose(infonce(scores, positive), two_way(scores[:, 0], scores[:, 1]))


def test_infonce_sums_over_positives_and_leaves_out_what_is_missing():
    scores = torch.tensor([[0.0, math.log(2.0), math.log(5.0)]], dtype=torch.float64)
    positive = torch.tensor([[True, True, False]])
    assert infonce(scores, positive).item() == pytest.approx(math.log(8 / 3))
    gone = torch.tensor([True, False, True])
    assert infonce(scores, positive, gone).item() == pytest.approx(math.log(6 / 1))


def test_infonce_without_a_positive_is_zero_with_zero_gradient():
    scores = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    positive = torch.eye(3, 4, dtype=torch.bool)
    present = torch.tensor([True, False, True, True])
    loss = torch.vmap(infonce, in_dims=(0, 0, None))(scores[None], positive[None], present)[0]
    assert loss[1] == 0 and (loss[[0, 2]] > 0).all()
    loss.sum().backward()
    assert torch.isfinite(scores.grad).all() and (scores.grad[1] == 0).all()
    nothing = infonce(scores, positive, torch.zeros(4, dtype=torch.bool))
    assert (nothing == 0).all()


def test_nothing_is_divided_by_zero():
    check_temperature(0.0, "multiply", "m.tau")
    with pytest.raises(BadValue, match=r"m\.tau is 0"):
        check_temperature(0.0, "divide", "m.tau")


def test_supervised_contrast():
    """Of equal similarity: with one positive and one negative log 2, with two of each log 4.

    At a right angle, a row's positive beats its two negatives by e^(1/t): log(1 + 2 e^(-1/t)).
    """
    ones = torch.ones(5, 3, dtype=torch.float64)
    assert supervised(ones[:3], torch.tensor([0, 0, 1]), 0.07).item() == pytest.approx(math.log(2))
    found = supervised(ones, torch.tensor([0, 0, 0, 1, 2]), 0.07)
    assert found.item() == pytest.approx(math.log(4))
    z = torch.tensor([[1.0, 0], [3, 0], [0, 1], [0, 2]], dtype=torch.float64)
    found = supervised(z, torch.tensor([4, 4, 7, 7]), 0.5)
    assert found.item() == pytest.approx(math.log(1 + 2 * math.exp(-2)))


def test_supervised_contrast_where_nobody_has_a_partner_and_of_zeros():
    z = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    alone = supervised(z, torch.arange(3), 0.07)
    (grad,) = torch.autograd.grad(alone, z)
    assert alone == 0 and not grad.any()
    zero = torch.zeros(4, 2, requires_grad=True)
    (grad,) = torch.autograd.grad(supervised(zero, torch.tensor([0, 0, 1, 1]), 0.07), zero)
    assert torch.isfinite(grad).all()
