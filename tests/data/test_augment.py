"""Augmentation: known answers, one sample one result, and what is refused."""

import json
import math

import pytest
import torch

from fedshift import keys
from fedshift.data import color, warp
from fedshift.data.augment import (
    OPERATIONS,
    ColorJitter,
    Crop,
    Flip,
    Grayscale,
    Motion,
    Noise,
    Pipeline,
    QuarterTurn,
    ResizedCrop,
    Rotate,
    operation,
)
from fedshift.errors import BadData, BadValue, UnknownName

EVERY = (
    Crop(2),
    ResizedCrop(0.4, 0.9),
    Flip(0.5),
    Rotate(40),
    QuarterTurn(),
    ColorJitter(0.3, 0.3, 0.3, 0.2),
    Grayscale(0.5),
    Noise(0.1),
)


def batch(n=9, channels=3, height=6, width=8, dtype=torch.float64):
    return keys.uniform(keys.as_tensor(1), (n, channels, height, width), dtype)


def fitting(op, n=9, dtype=torch.float64):
    """Oblong images, where the operation takes them."""
    return batch(n, width=6 if isinstance(op, QuarterTurn) else 8, dtype=dtype)


def sample_keys(n=9):
    return keys.bits(keys.as_tensor(7), (n,))


@pytest.mark.parametrize("op", EVERY, ids=lambda op: type(op).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sample_is_changed_alike_however_it_is_batched(op, dtype):
    x, k = fitting(op, dtype=dtype), sample_keys()
    whole = op(x, k)
    alone = torch.cat([op(x[i : i + 1], k[i : i + 1]) for i in range(len(x))])
    order = torch.tensor([4, 2, 0, 8, 6, 1, 3, 5, 7])
    assert whole.dtype == dtype and whole.shape == x.shape
    torch.testing.assert_close(whole, alone, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-14)
    torch.testing.assert_close(op(x[order], k[order]), whole[order], rtol=0, atol=1e-6)
    assert not torch.equal(whole, x)


@pytest.mark.parametrize("op", EVERY, ids=lambda op: type(op).__name__)
def test_argument_is_not_changed_and_other_keys_give_other_results(op):
    x, k = fitting(op), sample_keys()
    before = x.clone()
    first = op(x, k)
    assert torch.equal(x, before)
    assert torch.equal(op(x, k), first)
    assert not torch.equal(op(x, k + 1), first)


@pytest.mark.parametrize("op", EVERY, ids=lambda op: type(op).__name__)
def test_operations_run_under_vmap(op):
    x, k = fitting(op, 8), sample_keys(8)
    mapped = torch.func.vmap(op)(x.reshape(2, 4, *x.shape[1:]), k.reshape(2, 4))
    torch.testing.assert_close(mapped.reshape(x.shape), op(x, k))


def test_two_operations_of_one_kind_draw_apart():
    x = batch(400, 1, 1, 2)
    once = Pipeline(augment=(Flip(0.5),))(x, sample_keys(400), torch.float64)
    twice = Pipeline(augment=(Flip(0.5), Flip(0.5)))(x, sample_keys(400), torch.float64)
    assert not torch.equal(once, x)
    assert not torch.equal(twice, x)  # equal draws would mirror back


def test_crop_moves_whole_pixels_evenly():
    x = torch.zeros(3000, 1, 5, 5, dtype=torch.float64)
    x[:, 0, 2, 2] = 1
    where = Crop(1)(x, sample_keys(3000)).flatten(1).argmax(1)
    counts = torch.bincount(where, minlength=25).reshape(5, 5)
    assert int(counts.sum()) == int(counts[1:4, 1:4].sum()) == 3000
    assert int(counts[1:4, 1:4].min()) > 260  # 333 expected, standard deviation 17


def test_shift_known_answer():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).reshape(1, 1, 2, 2)
    moved = warp.shift(x, torch.tensor([1]), torch.tensor([-1]), padding=1)
    assert moved.flatten().tolist() == [0.0, 3.0, 0.0, 0.0]


def test_rotate_known_answers():
    x = batch(2, 3, 5, 5)
    quarter = torch.full((2,), math.pi / 2, dtype=torch.float64)
    torch.testing.assert_close(warp.rotate(x, quarter), torch.rot90(x, 1, (2, 3)))
    torch.testing.assert_close(warp.rotate(x, 0 * quarter), x)
    assert torch.equal(warp.rotate_nearest(x, quarter), torch.rot90(x, 1, (2, 3)))
    assert torch.equal(warp.rotate_nearest(x, 2 * quarter), x.flip(2, 3))


def test_rotation_keeps_the_aspect_of_an_oblong_image():
    x = torch.zeros(1, 1, 5, 9, dtype=torch.float64)
    x[0, 0, 2, 6] = 1.0  # two pixels right of the middle
    turned = warp.rotate(x, torch.tensor([math.pi / 2], dtype=torch.float64))
    assert float(turned[0, 0, 0, 4]) == pytest.approx(1.0)  # two pixels above it


def test_rotation_angles_stay_within_bounds():
    x = torch.zeros(500, 1, 41, 41, dtype=torch.float64)
    x[:, 0, 20, 40] = 1.0  # on the right edge: the angle is read off the height it rises to
    out = Rotate(30)(x, sample_keys(500)).sum(3)[:, 0]
    height = (out * (20.0 - torch.arange(41))).sum(1) / out.sum(1)
    angle = torch.rad2deg(torch.asin((height / 20).clamp(-1, 1)))
    assert float(angle.abs().max()) < 31
    assert float(angle.min()) < -27 and float(angle.max()) > 27


def test_resized_window_of_everything_is_the_image_and_of_a_half_is_stretched():
    x = batch(2, 1, 4, 4)
    zero, four, two = (torch.full((2,), v, dtype=torch.float64) for v in (0.0, 4.0, 2.0))
    torch.testing.assert_close(warp.resize_window(x, zero, zero, four, four), x)
    half = warp.resize_window(x, two, zero, two, four)
    between = 0.25 * x[:, 0, :, 2] + 0.75 * x[:, 0, :, 3]
    torch.testing.assert_close(half[:, 0, :, 2], between)


def test_resized_crop_windows_keep_their_area():
    # On a ramp the range of values left is the width of the window.
    ramp = torch.linspace(0, 1, 64, dtype=torch.float64)
    x = ramp.expand(800, 1, 64, 64)
    k = sample_keys(800)
    wide = ResizedCrop(0.25, 0.25)(x, k).flatten(1)
    tall = ResizedCrop(0.25, 0.25)(x.transpose(2, 3), k).flatten(1)
    area = (wide.amax(1) - wide.amin(1)) * (tall.amax(1) - tall.amin(1))
    assert float(area.median()) == pytest.approx(0.25, abs=0.02)
    assert float(area.max() - area.min()) < 0.03


def test_flip_share_and_result():
    x = batch(2000, 1, 2, 2)
    out = Flip(0.3)(x, sample_keys(2000))
    flipped = (out == x.flip(3)).flatten(1).all(1)
    same = (out == x).flatten(1).all(1)
    assert bool((flipped | same).all())
    assert float(flipped.double().mean()) == pytest.approx(0.3, abs=0.04)


def test_grayscale_is_the_luma_in_every_channel():
    x = batch()
    out = Grayscale(1.0)(x, sample_keys())
    luma = (x * torch.tensor([0.2989, 0.587, 0.114], dtype=x.dtype).reshape(1, 3, 1, 1)).sum(1)
    torch.testing.assert_close(out, luma[:, None].expand_as(x))


def test_hue_agrees_with_the_standard_library():
    import colorsys

    x = batch(5, 3, 2, 2)
    turn = torch.tensor([0.0, 0.1, 0.5, -0.2, 0.9], dtype=torch.float64)
    out = color.turn_hue(x, turn)
    for n in range(5):
        h, s, v = colorsys.rgb_to_hsv(*x[n, :, 1, 0].tolist())
        expected = colorsys.hsv_to_rgb((h + float(turn[n])) % 1, s, v)
        assert out[n, :, 1, 0].tolist() == pytest.approx(expected)
    torch.testing.assert_close(
        color.turn_hue(x[:, :1].expand(-1, 3, -1, -1), turn), x[:, :1].expand(-1, 3, -1, -1)
    )


def test_color_jitter_parts():
    x, k = batch(300) * 0.4 + 0.1, sample_keys(300)
    factor = (ColorJitter(brightness=0.5)(x, k) / x).flatten(1)
    torch.testing.assert_close(factor.amin(1), factor.amax(1))  # one factor per sample
    assert 0.5 <= float(factor.min()) < 0.52 and 1.48 < float(factor.max()) <= 1.5
    flat = color.grey(x).mean((1, 2, 3))
    contrast = color.grey(ColorJitter(contrast=0.2)(x, k)).mean((1, 2, 3))
    torch.testing.assert_close(contrast, flat, atol=1e-3, rtol=0)  # the mean grey stays
    saturated = ColorJitter(saturation=0.2)(x, k)
    torch.testing.assert_close(color.grey(saturated), color.grey(x), atol=1e-3, rtol=0)
    one = x[:, :1]
    assert torch.equal(ColorJitter(saturation=0.5, hue=0.5)(one, k), one)


def test_noise_has_its_standard_deviation_and_serves_vectors():
    x = torch.zeros(50, 400, dtype=torch.float64)
    out = Pipeline(augment=(Noise(0.2),))(x, sample_keys(50), torch.float64)
    assert float(out.std()) == pytest.approx(0.2, rel=0.02)
    assert float(out.mean()) == pytest.approx(0.0, abs=0.005)


def test_pipeline_scales_and_normalises():
    x = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 3, 1, 1)
    out = Pipeline((0.1, 0.2, 0.5), (1.0, 2.0, 0.5))(x, None, torch.float64)
    assert out.dtype == torch.float64
    assert out.flatten().tolist() == pytest.approx([-0.1, 0.0, 1.0], abs=1e-15)
    floats = torch.full((2, 3), 7.0)
    assert torch.equal(Pipeline()(floats), floats)  # floats are taken as they are


def test_evaluation_does_not_augment():
    x = batch(width=6)
    assert torch.equal(Pipeline(augment=EVERY)(x, None, torch.float64), x)


def test_pipeline_survives_json():
    pipeline = Pipeline((0.5,), (0.25,), EVERY)
    assert Pipeline.from_config(json.loads(json.dumps(pipeline.to_config()))) == pipeline
    assert {type(op) for op in EVERY} == set(OPERATIONS.values())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Crop(-1),
        lambda: Crop(1.5),
        lambda: Flip(1.2),
        lambda: Flip(math.nan),
        lambda: Rotate(181),
        lambda: ColorJitter(hue=0.6),
        lambda: Noise(-0.1),
        lambda: ResizedCrop(0.9, 0.5),
        lambda: Pipeline(mean=(0.5,)),
        lambda: Pipeline(mean=(0.5,), std=(0.0,)),
        lambda: Pipeline(mean=("a",), std=(1.0,)),
        lambda: Pipeline(augment=("crop",)),
    ],
)
def test_bad_values(make):
    with pytest.raises(BadValue) as error:
        make()
    assert "\n" not in str(error.value)


def test_unknown_names_offer_the_nearest():
    with pytest.raises(UnknownName, match="Crop"):
        operation({"name": "crop"})
    with pytest.raises(UnknownName, match="padding"):
        operation({"name": "Crop", "pading": 2})
    with pytest.raises(UnknownName, match="mean"):
        Pipeline.from_config({"means": [0.5]})


@pytest.mark.parametrize(
    ("pipeline", "shape"),
    [
        (Pipeline(augment=(Crop(2),)), (10,)),
        (Pipeline(augment=(QuarterTurn(),)), (1, 4, 5)),
        (Pipeline(augment=(Grayscale(0.5),)), (2, 4, 4)),
        (Pipeline(augment=(ColorJitter(hue=0.1),)), (4, 4, 4)),
        (Pipeline((0.5, 0.5, 0.5), (1, 1, 1)), (1, 4, 4)),
    ],
)
def test_samples_that_do_not_fit(pipeline, shape):
    with pytest.raises(BadData):
        pipeline.output_shape(shape)
    with pytest.raises(BadData):
        pipeline(torch.zeros(2, *shape))


def test_whole_numbers_are_not_guessed_at():
    with pytest.raises(BadData, match="int64"):
        Pipeline()(torch.zeros(2, 1, 2, 2, dtype=torch.int64))


# -- labels of pixels ----------------------------------------------------------------------------

MOTIONS = [op for op in EVERY if isinstance(op, Motion)]


def blobs(n=60, size=24):
    """Discs of class 1 and bars of class 2, away from the middle."""
    at = torch.arange(size)
    disc = (at[:, None] - 7) ** 2 + (at - 9) ** 2 < 25
    bar = (at[:, None] > 14) & (at[:, None] < 20) & (at > 4)
    return (disc.long() + 2 * bar.long()).expand(n, size, size)


@pytest.mark.parametrize("op", MOTIONS, ids=lambda op: type(op).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_labels_move_with_their_pixels(op, dtype):
    """An image that holds the labels shows, moved, what the moved labels say, but for edges."""
    y, k = blobs().to(torch.uint8), sample_keys(60)
    pipeline = Pipeline(augment=(Noise(0.5), op))
    moved = pipeline.labels(y, k, dtype)
    assert moved.dtype == torch.uint8 and moved.shape == y.shape
    assert set(moved.unique().tolist()) <= {0, 1, 2}, "no class between two others"
    assert not torch.equal(moved, y)
    plain = Pipeline(augment=(ColorJitter(), op))  # in the same place, so with the same keys
    shown = torch.stack([plain((y == c).to(dtype)[:, None], k, dtype)[:, 0] for c in (1, 2)], 1)
    agree = [(shown[:, c - 1] > 0.5) == (moved == c) for c in (1, 2)]
    exact = isinstance(op, (Crop, Flip, QuarterTurn))
    assert all(float(a.double().mean()) >= (1.0 if exact else 0.985) for a in agree)
    assert torch.equal(pipeline.labels(y.long(), k, dtype), moved.long())


def test_what_comes_from_outside_is_background():
    y = torch.ones(40, 5, 5, dtype=torch.int64)
    for op in (Crop(2), Rotate(45)):
        moved = Pipeline(augment=(op,)).labels(y, sample_keys(40))
        ones = torch.ones(40, 1, 5, 5, dtype=torch.float64)
        black = Pipeline(augment=(op,))(ones, sample_keys(40), torch.float64)[:, 0] < 1e-9
        assert bool((moved[black] == 0).all()) and 0 < float(moved.double().mean()) < 1


def test_colours_and_noise_leave_labels_alone():
    y, k = blobs(), sample_keys(60)
    pipeline = Pipeline(augment=(ColorJitter(0.5, 0.5), Grayscale(1.0), Noise(1.0)))
    assert pipeline.labels(y, k) is y


def test_quarter_turns_are_all_four_and_alike_often():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).expand(2000, 1, 2, 2)
    first = QuarterTurn()(x, sample_keys(2000))[:, 0].flatten(1)
    turned, counts = first.unique(dim=0, return_counts=True)
    by_hand = {(1, 2, 3, 4), (2, 4, 1, 3), (4, 3, 2, 1), (3, 1, 4, 2)}
    assert {tuple(int(v) for v in row) for row in turned} == by_hand
    assert int(counts.min()) > 420  # 500 expected, standard deviation 19
