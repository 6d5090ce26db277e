"""Class-conditional networks on embeddings: their sizes as published, labels, ranges."""

from __future__ import annotations

import pytest
import torch

from fedshift import keys
from fedshift.parts.generators import Generator, ResidualNet


def count(network: torch.nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("classes", "generator", "residual"),
    [(7, 399_872, 266_240), (10, 401_408, 267_008), (65, 429_568, 281_088)],
)
def test_sizes_of_fraug(classes, generator, residual):
    # noise 256, width 512: (256 + C) 512 + 512 + 2 * 512 + 512 * 512 + 512 + 2 * 512, and
    # (512 + C) 256 + 256 + 2 * 256 + 256 * 512 + 512 + 2 * 512
    assert count(Generator(256, classes, 512)) == generator
    assert count(ResidualNet(512, classes, 256)) == residual
    assert count(ResidualNet(512, classes, 256, norm=False)) == residual - 2 * 512


def test_generated_embeddings_are_not_negative_and_residuals_are_of_both_signs():
    torch.manual_seed(0)
    z = keys.normal(keys.as_tensor(1), (32, 6))
    y = torch.arange(32) % 4
    made = Generator(6, 4, 5)(z, y)
    assert made.shape == (32, 5) and made.min() == 0.0 and made.max() > 0.0
    residual = ResidualNet(5, 4, 6)(made, y)
    assert residual.shape == (32, 5) and residual.min() < 0.0 < residual.max()


@pytest.mark.parametrize("network", [Generator(6, 4, 6), ResidualNet(6, 4, 5)])
def test_the_label_matters(network):
    network.eval()
    x = torch.ones(2, 6)
    out = network(x, torch.tensor([1, 3]))
    assert (out[0] - out[1]).abs().max() > 1e-6
    same = network(x, torch.tensor([2, 2]))
    assert torch.allclose(same[0], same[1], atol=1e-6)
