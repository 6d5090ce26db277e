"""Known answers and distributions of the keyed random numbers."""

import math

import pytest
import torch
from scipy import stats

from fedshift import keys


def test_splitmix64_published_outputs():
    # The first outputs of SplitMix64 seeded with 1234567, as in the reference implementation
    # (Vigna) and Rosetta Code's task "Pseudo-random numbers/Splitmix64".
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    got = keys.bits(torch.tensor(1234567), (5,))
    assert [int(v) & (2**64 - 1) for v in got] == expected


def test_fold_depends_on_every_name_and_its_type():
    assert len({keys.fold(0), keys.fold(0, "1"), keys.fold(0, 1), keys.fold(1, 1)}) == 4
    assert keys.fold(3, "client", "a", "round", 2) == keys.fold(
        keys.fold(3, "client", "a"), "round", 2
    )


def test_draws_do_not_depend_on_batching():
    ks = torch.tensor([keys.fold(0, i) for i in range(4)])
    together = keys.normal(ks, (3, 2), torch.float64)
    mapped = torch.vmap(lambda k: keys.normal(k, (3, 2), torch.float64))(ks)
    alone = torch.stack([keys.normal(k, (3, 2), torch.float64) for k in ks])
    assert torch.equal(together, alone) and torch.equal(mapped, alone)
    assert torch.equal(torch.vmap(lambda k: keys.permutation(k, 9))(ks), keys.permutation(ks, 9))
    assert torch.equal(
        torch.vmap(lambda k: keys.beta(k, 0.2, 0.2, (2,)))(ks), keys.beta(ks, 0.2, 0.2, (2,))
    )


def test_fold_in_takes_numbers_tensors_and_names():
    key = keys.as_tensor(keys.fold(7, "x"))
    assert torch.equal(keys.fold_in(key, 5), keys.fold_in(key, torch.tensor(5)))
    children = torch.stack([keys.fold_in(key, i) for i in range(1000)])
    assert len(set(children.tolist()) | set(keys.bits(key, (1000,)).tolist())) == 2000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_and_normal(dtype):
    key = keys.as_tensor(keys.fold(0, "stats"))
    u = keys.uniform(key, (20000,), dtype)
    assert u.dtype == dtype and u.min() >= 0 and u.max() < 1
    assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-3
    n = keys.normal(key, (20000,), dtype)
    assert torch.isfinite(n).all()
    assert stats.kstest(n.double().numpy(), "norm").pvalue > 1e-3


@pytest.mark.parametrize("a,b", [(0.2, 0.2), (0.01, 0.5), (1.0, 1.0), (2.0, 5.0)])
def test_beta(a, b):
    x = keys.beta(keys.as_tensor(keys.fold(1, "beta")), a, b, (20000,))
    assert torch.isfinite(x).all()
    assert stats.kstest(x.numpy(), stats.beta(a, b).cdf).pvalue > 1e-3


def test_gamma_with_a_tiny_shape_stays_finite():
    x = keys.log_gamma(keys.as_tensor(1), 1e-3, (1000,))
    assert torch.isfinite(x).all()
    p = keys.dirichlet(keys.as_tensor(2), torch.full((500, 4), 1e-6, dtype=torch.float64))
    assert torch.allclose(p.sum(-1), torch.ones(500, dtype=torch.float64))


def test_permutation_and_integers():
    key = keys.as_tensor(keys.fold(0, "order"))
    assert sorted(keys.permutation(key, 50).tolist()) == list(range(50))
    draws = keys.integers(key, 7, (7000,))
    assert draws.min() == 0 and draws.max() == 6
    assert stats.chisquare(torch.bincount(draws).numpy()).pvalue > 1e-3
    assert math.isclose(keys.integers(key, 1, (3,)).sum().item(), 0)
