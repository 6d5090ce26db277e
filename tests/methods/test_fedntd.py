"""FedNTD: logits (2, 1, 0), teacher (0, 0, 0), true class 0.

What is left is q = softmax(1, 0) = (0.731059, 0.268941) against (1/2, 1/2):
KL = -log 2 - (log 0.731059 + log 0.268941) / 2 = 0.120115, with gradient q - q_g = +-0.231059. At
tau = 3, q = softmax(1/3, 0), and 9 KL = 0.124426.
"""

from __future__ import annotations

import pytest
import torch

import fedshift as fs
from fedshift import methods
from fedshift.methods.fedntd import FedNTD, not_true
from tests.methods.quadratic import ENGINES
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import ToyNet, federation, largest_difference

LOGITS = torch.tensor([[2.0, 1.0, 0.0]], dtype=torch.float64)
TEACHER = torch.zeros(1, 3, dtype=torch.float64)
SHORT = PROTOCOL.replace(steps=2)


def test_loss_and_gradient():
    logits = LOGITS.clone().requires_grad_()
    loss = not_true(logits, TEACHER, torch.tensor([0]), 1.0)
    assert loss.item() == pytest.approx(0.120115, abs=1e-6)
    loss.backward()
    assert logits.grad[0].tolist() == pytest.approx([0.0, 0.231059, -0.231059], abs=1e-6)
    assert not_true(LOGITS, TEACHER, torch.tensor([0]), 3.0).item() == pytest.approx(
        0.124426, abs=1e-6
    )


def test_the_true_class_does_not_matter_and_the_teacher_comes_first():
    y = torch.tensor([0])
    moved = LOGITS + torch.tensor([[50.0, 0, 0]])
    assert torch.equal(not_true(moved, TEACHER, y, 1.0), not_true(LOGITS, TEACHER, y, 1.0))
    turned = not_true(TEACHER, LOGITS, y, 1.0).item()
    # KL(q || uniform) = log 2 + sum q log q
    assert turned == pytest.approx(0.110944, abs=1e-6) != pytest.approx(0.120115, abs=1e-6)
    assert not_true(LOGITS, LOGITS + 1.0, y, 1.0).item() == pytest.approx(0.0, abs=1e-12)


def test_two_classes_leave_nothing_to_distil():
    logits = torch.tensor([[1.0, -2.0], [0.5, 0.0]], requires_grad=True)
    loss = not_true(logits, -logits.detach(), torch.tensor([0, 1]), 1.0)
    loss.backward()
    assert loss == 0 and not logits.grad.any()


def test_soft_labels_count_as_their_heaviest_and_maps_pixel_by_pixel():
    y = torch.tensor([2, 0])
    scores, teacher = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(0))
    soft = torch.tensor([[0.2, 0.1, 0.7], [0.6, 0.4, 0.0]])
    plain = not_true(scores, teacher, y, 2.0)
    assert torch.equal(not_true(scores, teacher, soft, 2.0), plain)
    pixels = not_true(scores.T[None], teacher.T[None], y[None], 2.0)
    assert torch.allclose(pixels, plain)


def test_nothing_to_forget_in_the_first_step():
    """The first local step starts at the received model: without dropout and norm the term is 0."""

    def term(steps: int) -> float:
        run = fs.Run(
            federation(),
            FedNTD(),
            SHORT.replace(rounds=1, steps=steps),
            lambda: ToyNet(dropout=0.0, norm=False),
            dtype="float64",
            device="cpu",
            engine="loop",
            workers=1,
        )
        return run.play().lines[-1]["loss"]["not_true"]

    assert term(1) == pytest.approx(0.0, abs=1e-14)
    assert term(2) > 1e-9


def test_weight_and_temperature_reach_the_loss():
    def term(**options) -> float:
        run = start(FedNTD(**options), SHORT.replace(rounds=1, lr=1e-15)).play()
        return run.lines[-1]["loss"]["not_true"]

    assert term(beta=2.0) == pytest.approx(20 * term(beta=0.1))
    assert term(tau=3.0) != pytest.approx(term(), rel=1e-3)


def test_a_teacher_in_training_mode_normalises_by_the_batch():
    """Then it says in the first step what the model says, whatever its statistics are."""

    def both(mode: str) -> list[fs.Run]:
        return [
            fs.Run(
                federation(),
                FedNTD(teacher=mode),
                SHORT.replace(rounds=1, steps=1),
                lambda: ToyNet(dropout=0.0),
                dtype="float64",
                device="cpu",
                engine=e,
                workers=1,
            ).play()
            for e in ENGINES
        ]

    terms = {}
    for mode in ("eval", "train"):
        runs = both(mode)
        assert largest_difference(*map(state, runs)) < 1e-9
        terms[mode] = runs[0].lines[-1]["loss"]["not_true"]
    assert terms["train"] == pytest.approx(0.0, abs=1e-14) and terms["eval"] > 1e-4
    plain = start(methods.make("fedavg"), SHORT.replace(rounds=1, steps=1)).play()
    moved = "conv.1.num_batches_tracked"
    assert runs[0].progress.server.model[moved] == plain.progress.server.model[moved] == 1


def test_precision_where_networks_compute_in_bfloat16():
    ours, theirs = torch.randn(2, 16, 5, generator=torch.Generator().manual_seed(0)).bfloat16()
    y = torch.arange(16) % 5
    with torch.autocast("cpu", torch.bfloat16):
        found = not_true(ours, theirs, y, 2.0)
    exact = not_true(ours.double(), theirs.double(), y, 2.0)
    assert found.item() == pytest.approx(exact.item(), rel=1e-5)


@pytest.mark.parametrize("other", ["mixup", "fedbn"])
def test_compositions_agree_on_both_engines(other):
    beside = methods.make(other)
    runs = [start(beside + FedNTD(), SHORT, engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
    alone = start(beside, SHORT).play()
    new, old = (r.progress.server.model for r in (runs[0], alone))
    assert largest_difference(new, old) > 1e-6
