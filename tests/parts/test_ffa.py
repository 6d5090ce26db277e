"""The augmenting layer and the server's variance, against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from fedshift import keys
from fedshift.draws import keyed
from fedshift.parts.ffa import (
    FFA,
    beginning,
    deviation,
    from_sums,
    modulation,
    normal,
    shared_variance,
)
from fedshift.parts.style import as_maps, moments

D = torch.float64
# two samples, two channels, 2 x 2 positions
X = torch.tensor(
    [[[[1, 2], [3, 4]], [[0, 0], [2, 2]]], [[[2, 2], [4, 8]], [[1, 3], [5, 7]]]], dtype=D
)
NOISE = torch.tensor([[[1, -1], [0.5, 2]], [[-1, 0.5], [1, 0]]], dtype=D)


def layer(**options) -> FFA:
    made = FFA(2, 4, **options).double()
    if made.source == "both":
        made.variance.copy_(torch.tensor([[0.5, 2.0], [1.0, 1.0]], dtype=D))
    return made


def jitter(made: FFA, x: torch.Tensor = X, noise: torch.Tensor = NOISE) -> torch.Tensor:
    maps = as_maps(x)
    return made.jitter(maps, made.style(maps), noise, torch.tensor(True)).reshape(x.shape)


def near(found, expected, digits: float = 5.1e-7) -> None:
    assert torch.allclose(found, torch.tensor(expected, dtype=D), rtol=0, atol=digits), found


@pytest.mark.parametrize(
    ("shared", "gamma"),
    [
        # t = V / (1 + V) = 1/3, 2/3, 1/11, times 3 / sum: 36/35 … = 0.916667, 1.833333, 0.25
        ([0.5, 2.0, 0.1], [0.916667, 1.833333, 0.250000]),
        ([0.5, 2.0], [0.666667, 1.333333]),
        ([0.0, 1.0, 3.0], [0.0, 1.2, 1.8]),
        ([0.7, 0.7, 0.7, 0.7], [1.0, 1.0, 1.0, 1.0]),
        ([0.0, 0.0], [1.0, 1.0]),
    ],
)
def test_modulation(shared, gamma):
    near(modulation(torch.tensor(shared, dtype=D)), gamma)
    assert modulation(torch.tensor(shared, dtype=D)).mean().item() == pytest.approx(1.0)


def test_modulation_of_tiny_variances():
    """For small V, gamma is V over its mean: 2 V / (1e-30 + 3e-30)."""
    near(modulation(torch.tensor([1e-30, 3e-30])).double(), [0.5, 1.5])


def test_statistics_of_the_batch():
    """Channel 1 of sample 1: mean 2.5, variance 5/4. S = variance over the two samples + 1e-6."""
    mean, std = moments(as_maps(X))
    near(mean, [[2.5, 1], [4, 4]])
    near(std, [[1.118034, 1.000000], [2.449490, 2.236068]])
    client = layer(source="client")
    spread = client.spread(torch.stack([mean, std])).square()
    near(spread, [[[0.562501, 2.250001]], [[0.443194, 0.381967]]])


# sample by sample, channel by channel, position by position
BIASED = """
    3.231377  3.389290  3.547203  3.705116   -2.728305 -2.728305  0.145728  0.145728
    1.715406  1.715406  4.484123 10.021557    5.582577  7.582577  9.582577 11.582577
"""
UNBIASED = """
    4.155642  3.964752  3.773862  3.582972   -3.858405 -3.858405 -0.622337 -0.622337
    1.597524  1.597524  4.684654 10.858912    7.480741  9.480741 11.480741 13.480741
"""


@pytest.mark.parametrize(("unbiased", "expected"), [(False, BIASED), (True, UNBIASED)])
def test_worked_example(unbiased, expected):
    """V = (0.5, 2) for means and (1, 1) for standard deviations: gamma (2/3, 4/3) and (1, 1)."""
    near(jitter(layer(unbiased=unbiased)).flatten(), [float(v) for v in expected.split()])


@pytest.mark.parametrize(
    ("unbiased", "std"), [(False, [1.007838, 1.006180]), (True, [1.010597, 1.008683])]
)
def test_moving_averages_after_one_batch(unbiased, std):
    """From (0, 1): 0.99 * 0 + 0.01 * (2.5 + 4) / 2 = 0.0325 and so on."""
    made = layer(p=1.0, unbiased=unbiased).train()
    made(X)
    near(made.decay * beginning(made.average) + made.average, [[0.0325, 0.0250], std])


def test_no_noise_no_change():
    assert torch.allclose(jitter(layer(), noise=torch.zeros_like(NOISE)), X, rtol=0, atol=1e-6)


def test_it_does_nothing_in_evaluation_nor_at_p_zero():
    assert layer(p=1.0).eval()(X) is X
    made = layer(p=0.0).train()
    assert torch.equal(made(X), X)
    assert made.decay == 1 and not made.average.any(), "what does not act does not observe"


def test_the_chance_to_act():
    made = layer(p=0.3, momentum=0.5).train()
    acted = []
    for i in range(400):
        before = made.decay.clone()
        with keyed(keys.as_tensor(keys.fold(0, i))):
            out = made(X)
        acted.append(not torch.equal(out, X))
        assert acted[-1] == bool(made.decay != before)
        made.decay.fill_(1.0)
    assert sum(acted) / 400 == pytest.approx(0.3, abs=0.07)


@pytest.mark.parametrize("std", [0.5, 0.1])
def test_fixed_jitter_moves_both_statistics_by_its_standard_deviation(std):
    made = FFA(4, 9, p=1.0, source="random", std=std).train()
    x = 5.0 * keys.normal(keys.as_tensor(1), (4096, 4, 3, 3))
    with keyed(keys.as_tensor(2)):
        change = moments(as_maps(made(x))) - moments(as_maps(x))
    assert change.std((1, 2)).tolist() == pytest.approx([std, std], rel=0.03)
    assert change.mean((1, 2)).tolist() == pytest.approx([0, 0], abs=4 * std / 128)
    assert abs(torch.corrcoef(change.flatten(1))[0, 1].item()) < 4 / 128
    assert list(made.buffers()) == []


def test_normal_numbers_have_the_normal_distribution():
    """Phi(e) = u + 2^-25; the ends of the range of u are finite and alike."""
    u = keys.uniform(keys.as_tensor(4), (1000,)).double()
    assert torch.allclose(torch.special.ndtr(normal(u)), u + 2**-25, rtol=0, atol=1e-12)
    low, high = normal(torch.tensor([0.0, 1 - 2**-24]))
    assert low == -high and 5.4 < high < 5.5


@pytest.mark.parametrize("positions", [4, 1])
def test_samples_and_channels_have_draws_of_their_own_and_positions_share_them(positions):
    x = keys.normal(keys.as_tensor(5), (6, 5, positions), D)
    made = FFA(5, positions, p=1.0, source="random").double().train()
    with keyed(keys.as_tensor(6)):
        y = made(x.unsqueeze(3)).squeeze(3)
    moved = (y - x)[..., 0] if positions == 1 else y.mean(2) - x.mean(2)
    assert len(set(moved.flatten().tolist())) == 30
    if positions > 1:  # a straight line for each sample and channel: differences keep their ratio
        ratio = (y - y.mean(2, keepdim=True)) / (x - x.mean(2, keepdim=True))
        assert torch.allclose(ratio, ratio[..., :1].expand_as(ratio))


def test_equal_samples_have_no_client_variance():
    """S is then 1e-6 alone: samples move by 1e-3 times e."""
    made = layer(source="client")
    x = X[:1].expand(2, -1, -1, -1)
    change = (jitter(made, x) - x).abs().max().item()
    assert 1e-4 < change < 5e-3


def test_no_variance_over_clients_leaves_the_client_s_own():
    made = layer(fusion="direct")
    made.variance.zero_()
    assert torch.equal(jitter(made), jitter(layer(source="client")))


def test_direct_fusion_widens_by_v_itself():
    style = moments(as_maps(X))
    direct, adaptive = (layer(fusion=f).spread(style).square() for f in ("direct", "adaptive"))
    near(direct, [[[0.562501 * 1.5, 2.250001 * 3]], [[0.443194 * 2, 0.381967 * 2]]], 2e-6)
    near(adaptive, [[[0.562501 * 5 / 3, 2.250001 * 7 / 3]], [[0.443194 * 2, 0.381967 * 2]]], 2e-6)


def test_gradients_flow_through_all_statistics_but_not_into_the_averages():
    x = X.clone().requires_grad_()
    made = layer(p=1.0).train()
    made(x).square().sum().backward()
    assert torch.isfinite(x.grad).all() and not made.average.requires_grad
    assert torch.autograd.gradcheck(lambda t: jitter(layer(), t), (x,))


def test_vectors_get_noise_on_their_values_alone():
    x = torch.tensor([[1.0, 5.0], [3.0, 1.0]], dtype=D)
    made = FFA(2, 1).double()
    assert made.variance.shape == made.average.shape == (1, 2)
    # V = 1: variances over the batch 1 and 4 (+ 1e-6) are doubled
    spread = torch.tensor([[2**0.5, 8**0.5]], dtype=D)
    near(jitter(made, x, NOISE[:1]) - x, (NOISE[0] * spread).tolist(), 2e-6)


@pytest.mark.parametrize("unbiased", [False, True])
def test_a_batch_of_one_stays_finite(unbiased):
    assert torch.isfinite(jitter(layer(unbiased=unbiased), X[:1], NOISE[:, :1])).all()


def test_bfloat16_in_and_out():
    x = X.to(torch.bfloat16)
    out = FFA(2, 4, p=1.0).train()(x)
    assert out.dtype == torch.bfloat16 and torch.isfinite(out).all()


def test_variance_over_clients():
    """Means of three clients: (0, 1), (2, 1), (4, 4). Over all six numbers: mean 2, sum 14, / 5."""
    rows = torch.tensor([[0, 1], [2, 1], [4, 4]], dtype=D)
    known = rows.mean(0), rows.var(0, correction=0), 3
    near(shared_variance(*known), [2.666667, 2.000000])
    near(shared_variance(*known, unbiased=True), [4.0, 3.0])
    near(shared_variance(*known, scalar=True, unbiased=True), [2.8, 2.8])
    near(shared_variance(*known, scalar=True), [14 / 6, 14 / 6])
    near(modulation(shared_variance(*known)), [1.043478, 0.956522])


@pytest.mark.parametrize("level", [0.3, 30.0])
def test_sums_of_deviations_keep_small_variances_where_plain_sums_lose_them(level):
    """Ten clients in float32 around `level`, with V = 1e-4, the last mean a little off."""
    noise = 0.01 * keys.normal(keys.as_tensor(3), (10, 64), D)
    x = (level + noise).float()
    true = x.double().var(0, correction=0)
    assert true.mean().item() == pytest.approx(1e-4, rel=0.2)
    centre = torch.full((64,), level + 0.005)
    shared = torch.full((64,), 2e-4)
    sums = (part.sum(0) for part in deviation(x, centre, shared))
    mean, var = from_sums(*sums, 10, centre, shared)
    assert torch.allclose(mean.double(), x.double().mean(0), rtol=1e-6)
    plain = x.square().sum(0) / 10 - (x.sum(0) / 10).square()
    ours, theirs = (((v.double() - true).abs() / true).max().item() for v in (var, plain))
    assert ours < 3e-6 and theirs > 50 * ours, (ours, theirs)
    if level > 1:
        assert theirs > 0.1, "nothing is left of V"
