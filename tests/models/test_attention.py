"""What transformers are made of, against torch's own and against attention over the whole image."""

import math

import pytest
import torch
from torch import nn

from fedshift import keys
from fedshift.draws import keyed
from fedshift.models.attention import Attention, DropBranch
from fedshift.models.swin import WINDOW, Merge, WindowAttention


def noise(*shape: int) -> torch.Tensor:
    return keys.normal(keys.as_tensor(keys.fold(0, str(shape))), shape, torch.float64)


def test_attention_is_torchs():
    ours = Attention(12, 3, bias=True).double()
    torchs = nn.MultiheadAttention(12, 3, batch_first=True).double()
    torchs.in_proj_weight, torchs.in_proj_bias = ours.qkv.weight, ours.qkv.bias
    torchs.out_proj = ours.proj
    x = noise(2, 5, 12)
    torch.testing.assert_close(ours(x), torchs(x, x, x)[0], rtol=0, atol=1e-12)


def by_hand(layer: WindowAttention, x: torch.Tensor) -> torch.Tensor:
    """Every token may look at those between the same cuts, at 0, 7, … or, shifted, at 3, 10, …"""
    sides = x.shape[1:3]
    cut = [(torch.arange(n) - (layer.shift if n > WINDOW else 0)).div(7).floor() for n in sides]
    place = torch.cartesian_prod(*[torch.arange(n) for n in sides])
    part = torch.stack([cut[axis][place[:, axis]] for axis in (0, 1)], 1)
    same = (part[:, None] == part[None]).all(-1)
    apart = (place[:, None] - place[None]).clamp(1 - WINDOW, WINDOW - 1) + WINDOW - 1
    bias = layer.table[apart[..., 0] * (2 * WINDOW - 1) + apart[..., 1]].movedim(-1, 0)
    add = torch.where(same, bias, -math.inf)
    return Attention.forward(layer, x.flatten(1, 2), add).unflatten(1, sides)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("sides", [(14, 21), (7, 14), (7, 7)])
def test_windows_are_attention_over_the_image_with_cuts(shifted, sides):
    layer = WindowAttention(64, shifted).double()
    nn.init.normal_(layer.table)
    x = noise(2, *sides, 64)
    torch.testing.assert_close(layer(x), by_hand(layer, x), rtol=0, atol=1e-12)


def test_windows_pad_odd_sides():
    layer = WindowAttention(32, shifted=True).double()
    x = noise(1, 9, 5, 32)
    padded = torch.zeros(1, 14, 7, 32, dtype=torch.float64)
    padded[:, :9, :5] = x
    torch.testing.assert_close(layer(x), layer(padded)[:, :9, :5], rtol=0, atol=1e-12)


def test_merge_takes_corners_in_the_order_of_published_weights():
    """[0, 0], [1, 0], [0, 1], [1, 1]: rows first, as torchvision does."""
    layer = Merge(1)
    layer.norm = nn.Identity()
    layer.reduction = nn.Identity()
    x = torch.tensor([[1.0, 2.0, 5.0], [3.0, 4.0, 6.0]])[None, None]
    assert layer(x)[0, 0].tolist() == [[1, 3, 2, 4], [5, 6, 0, 0]]


def test_branches_are_dropped_by_sample_and_keep_their_mean():
    drop, ones = DropBranch(0.25), torch.ones(4000, 2, 3)
    with keyed(keys.as_tensor(keys.fold(0, "drop"))):
        out = drop(ones)
    lost = (out == 0).all((1, 2)).double().mean().item()
    assert lost == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 4000))
    assert out.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert (out.amax((1, 2)) == out.amin((1, 2))).all()  # a sample's whole branch
    assert torch.equal(drop.eval()(ones), ones)
