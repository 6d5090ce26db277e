"""Losses of an unsure classifier, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedshift.parts.confusion import CONFUSIONS, entropy, negative_entropy, non_saturating

LOGITS = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]], dtype=torch.float64)


def test_entropy():
    # ln 3, and the entropy of softmax (1, 2, 3) = (.090031, .244728, .665241)
    assert entropy(LOGITS[:1]).item() == pytest.approx(1.098612, abs=5e-7)
    assert entropy(LOGITS[1:]).item() == pytest.approx(0.832396, abs=5e-7)
    assert entropy(LOGITS).item() == pytest.approx(0.965504, abs=5e-7)
    y = torch.tensor([0, 1])
    assert negative_entropy(LOGITS, y) == -entropy(LOGITS)


def test_entropy_of_a_certain_answer_is_zero_with_a_sound_gradient():
    sure = torch.tensor([[1000.0, 0.0]], requires_grad=True)
    entropy(sure).backward()
    assert entropy(sure).item() == 0.0 and torch.isfinite(sure.grad).all()


def test_non_saturating():
    # softmax (3/4, 1/4) with label 0, smoothed to (.95, .05)
    logits = torch.tensor([[math.log(3.0), 0.0]], dtype=torch.float64)
    hand = -(0.95 * math.log(1 / 4) + 0.05 * math.log(3 / 4))
    assert non_saturating(logits, torch.tensor([0])).item() == pytest.approx(hand, abs=1e-9)
    plain = non_saturating(logits, torch.tensor([0]), smoothing=0.0)
    assert plain.item() == pytest.approx(-math.log(1 / 4), abs=1e-9)


@pytest.mark.parametrize("name", CONFUSIONS)
def test_descending_confuses(name):
    logits = torch.tensor([[2.0, 0.0, 0.0]], requires_grad=True)
    CONFUSIONS[name](logits, torch.tensor([0])).backward()
    assert logits.grad[0, 0] > 0.0, "a step downhill makes the label's class less likely"
