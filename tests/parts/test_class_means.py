"""Moving class means: worked examples, and the ways in which they may move."""

from __future__ import annotations

import torch

from fedshift.parts.class_means import ClassMeans, batch_means

U = torch.tensor([[2.0, 0.0], [4.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
FIRST, SECOND = torch.tensor([0, 0, 2]), torch.tensor([1, 1, 2])


def moved(rule: str = "masked") -> list[torch.Tensor]:
    """The means after a first and after a second batch, at rate 0.3."""
    module = ClassMeans(3, 2, rule).double()
    return [module(U, y, 0.3).clone() for y in (FIRST, SECOND)]


def close(a: torch.Tensor, b: list[list[float]]) -> bool:
    return torch.allclose(a, torch.tensor(b, dtype=torch.float64), atol=1e-12)


def test_means_move_and_absent_classes_stay():
    # the mean of class 0 is (3, 1): 0.3 of it; class 2: 0.7 * 0.3 + 0.3 = 0.51
    first, second = moved()
    assert close(first, [[0.9, 0.3], [0, 0], [0.3, 0.3]])
    assert close(second, [[0.9, 0.3], [0.9, 0.3], [0.51, 0.51]])


def test_shrinking_of_absent_classes():
    # read literally, the rule multiplies class 0 by 0.7 in the batch that lacks it
    _, second = moved("shrinking")
    assert close(second, [[0.63, 0.21], [0.9, 0.3], [0.51, 0.51]])


def test_a_warm_start_copies_the_first_mean():
    first, second = moved("warm")
    assert close(first, [[3, 1], [0, 0], [1, 1]])
    assert close(second, [[3, 1], [3, 1], [1, 1]])
    module = ClassMeans(3, 2, "warm").double()
    module(U, FIRST, 0.3)
    again = module(U + 1.0, FIRST, 0.3)  # seen before: moves by 0.3
    assert close(again[:1], [[3.3, 1.3]])


def test_nothing_moves_in_eval_mode_or_without_a_batch():
    module = ClassMeans(3, 2).double()
    assert module().abs().max() == 0.0
    module.eval()
    assert module(U, FIRST, 0.3).abs().max() == 0.0
    assert module.seen.abs().max() == 0.0


def test_autocast_does_not_round_means():
    u = torch.tensor([[1.0], [2.0**-10]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        means, _ = batch_means(u, torch.tensor([0, 0]), 1)
    assert means.item() == (1.0 + 2.0**-10) / 2


def test_each_client_has_its_own_under_vmap():
    module = ClassMeans(3, 2).double()

    def one(buffers, u, y):
        return torch.func.functional_call(module, buffers, (u, y, 0.3))

    buffers = {n: b.expand(2, *b.shape).clone() for n, b in module.named_buffers()}
    torch.vmap(one)(buffers, torch.stack([U, U + 1.0]), torch.stack([FIRST, SECOND]))
    assert close(buffers["means"][0], [[0.9, 0.3], [0, 0], [0.3, 0.3]])
    assert close(buffers["means"][1], [[0, 0], [1.2, 0.6], [0.6, 0.6]])
    assert buffers["seen"].tolist() == [[1, 0, 1], [0, 1, 1]]
