"""Channel statistics of maps, tokens and vectors, and which stages a text names."""

from __future__ import annotations

import pytest
import torch

from fedshift.errors import BadModel, UnknownName
from fedshift.parts import style

SHAPES = {"conv1": (4, 3, 3), "tokens": (9, 6), "pooled": (8, 1, 1), "fc": (5,)}


def test_tokens_are_maps_with_their_axes_swapped():
    maps = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    tokens = maps.flatten(2).transpose(1, 2)
    assert torch.equal(style.as_maps(maps), style.as_maps(tokens))
    for x in (maps, tokens, maps[:, :, 0, 0], maps.unsqueeze(4)):
        assert torch.equal(style.from_maps(style.as_maps(x), x), x)


def test_moments_against_torch():
    x = torch.randn(3, 4, 5, 6, dtype=torch.float64)
    mean, std = style.moments(style.as_maps(x), eps=1e-6, unbiased=True)
    assert torch.allclose(mean, x.mean((2, 3)))
    assert torch.allclose(std, (x.var((2, 3)) + 1e-6).sqrt())


@pytest.mark.parametrize("unbiased", [False, True])
def test_one_value_has_no_variance_and_no_nan(unbiased):
    _, std = style.moments(style.as_maps(torch.randn(2, 3)), unbiased=unbiased)
    assert torch.allclose(std, torch.full((2, 3), 1e-3))
    assert style.variance(torch.randn(1, 3), 0, unbiased).tolist() == [0, 0, 0]


def test_a_dead_channel_stays_finite():
    x = torch.zeros(2, 1, 4, requires_grad=True)
    old = style.moments(x)
    new = torch.stack([old[0] + 1.0, 2.0 * old[1]])
    style.restyle(x, old, new, torch.tensor(True)).sum().backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("acts", [True, False])
def test_restyled_maps_have_the_new_style_or_are_the_old_ones(acts):
    x = torch.randn(3, 4, 50, dtype=torch.float64, requires_grad=True)
    new = torch.randn(2, 3, 4, dtype=torch.float64)  # a negative spread turns maps round
    old = style.moments(x, 0.0)
    y = style.restyle(x, old, new, torch.tensor(acts))
    if acts:
        assert torch.allclose(style.moments(y, 0.0), torch.stack([new[0], new[1].abs()]))
    else:
        assert torch.equal(y, x)
    weight = torch.randn_like(x)
    (slope,) = torch.autograd.grad((y * weight).sum(), x)
    assert torch.equal(slope, weight) == (not acts)


def test_half_precision_is_computed_in_single_and_given_back():
    x = torch.randn(2, 3, 4, 4).to(torch.bfloat16)
    assert style.as_maps(x).dtype == torch.float32
    assert style.from_maps(style.as_maps(x), x).dtype == torch.bfloat16


def test_chosen_stages():
    assert list(style.chosen(SHAPES, "maps")) == ["conv1", "tokens"]
    assert list(style.chosen(SHAPES, "all")) == list(SHAPES)
    assert list(style.chosen({**SHAPES, "late": (4, 2)}, "early")) == ["conv1", "tokens"]
    assert style.chosen(SHAPES, "none") == {}
    # in the order of the model, whatever the order of the text
    assert list(style.chosen(SHAPES, "fc,1")) == ["conv1", "fc"]
    assert [style.channels(s) for s in SHAPES.values()] == [4, 6, 8, 5]
    assert [style.positions(s) for s in SHAPES.values()] == [9, 9, 1, 1]
    with pytest.raises(UnknownName, match="did you mean conv1"):
        style.chosen(SHAPES, "conv")
    with pytest.raises(UnknownName):
        style.chosen(SHAPES, "5")
    with pytest.raises(BadModel, match="'all'"):
        style.chosen({"fc": (5,)}, "maps")


def test_stages_without_a_style_are_refused():
    assert list(style.with_style(SHAPES, "maps", "x.layers")) == ["conv1", "tokens"]
    with pytest.raises(BadModel, match=r"x\.layers names stage 'pooled'.*no style: name stages"):
        style.with_style(SHAPES, "all", "x.layers")
