"""Folders of images and masks: layouts, what numbers mean, and what users get wrong."""

import numpy as np
import pytest
import torch
from PIL import Image

from fedshift import data
from fedshift.data import cache, masks
from fedshift.errors import BadData, UnknownName

SIZE = (6, 8)  # height, width


def mask_of(i, value=1):
    """A bar of i + 1 columns."""
    mask = np.zeros(SIZE, np.uint8)
    mask[:, : i % 7 + 1] = value
    return mask


def put(root, i, mask, ending="jpg"):
    """An image whose grey is i, and a mask beside it."""
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True, exist_ok=True)
    Image.new("L", SIZE[::-1], 10 * i).save(root / "images" / f"{i}.{ending}", quality=100)
    picture = mask if isinstance(mask, Image.Image) else Image.fromarray(mask)
    picture.save(root / "masks" / f"{i}.png")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def scans(tmp_path):
    for client in ("north", "south"):
        for i in range(10):
            put(tmp_path / "scans" / client, i, mask_of(i, 255))
    return tmp_path / "scans"


def check_pairs(samples):
    for x, y in zip(samples.x, samples.y):
        i = round(int(x[0, 0, 0]) / 10)
        assert torch.equal(y, torch.from_numpy(mask_of(i)))


def test_images_and_masks_make_a_segmentation(scans):
    fed = data.folder(scans)
    assert (fed.task, fed.metric, fed.classes) == ("segmentation", "dice", ("0", "1"))
    assert fed.names == ("north", "south")
    client = fed["north"]
    assert [len(s) for s in (client.train, client.val, client.test)] == [6, 2, 2]
    assert client.train.x.shape[1:] == (1, *SIZE) and client.train.y.dtype == torch.uint8
    for part in (client.train, client.val, client.test):
        check_pairs(part)
    again = data.load(f'{scans}?classes=["back","gland"]&metric=dice-all')
    assert (again.classes, again.metric) == (("back", "gland"), "dice-all")
    assert data.load(again.source).classes == again.classes
    assert torch.equal(data.load(again.source)["north"].train.y, client.train.y)


def test_mapped_images_have_the_same_masks(scans):
    inside, mapped = data.folder(scans), data.folder(scans, memory=10)
    for part in ("train", "val", "test"):
        a, b = getattr(inside["south"], part), getattr(mapped["south"], part)
        assert torch.equal(a.x, b.x) and torch.equal(a.y, b.y)
    assert len(list(cache.directory().iterdir())) == 6


def test_splits_and_palettes(tmp_path):
    for split, n in (("train", 3), ("val", 2), ("test", 1)):
        for i in range(n):
            picture = Image.fromarray(mask_of(i, 2) + (mask_of(2) - mask_of(0)) % 2)
            picture = Image.fromarray(np.minimum(np.asarray(picture), 2))
            picture.putpalette([9, 9, 9, 200, 0, 0, 0, 200, 0])
            put(tmp_path / "d" / "a" / split, i, picture)
    fed = data.folder(tmp_path / "d")
    assert [len(s) for s in (fed["a"].train, fed["a"].val, fed["a"].test)] == [3, 2, 1]
    assert fed.classes == ("0", "1", "2")
    assert set(fed["a"].train.y.unique().tolist()) == {0, 1, 2}


def test_sizes_change_without_new_numbers(scans):
    fed = data.folder(scans, size=(3, 4))
    assert fed["north"].train.y.shape[1:] == (3, 4)
    assert set(fed["north"].train.y.unique().tolist()) <= {0, 1}
    whole = data.folder(scans, size=(12, 16))["north"].train.y
    small = data.folder(scans)["north"].train.y
    assert torch.equal(whole, small.repeat_interleave(2, 1).repeat_interleave(2, 2))


def test_images_and_masks_may_be_classes_where_one_says_so(scans):
    fed = data.folder(scans, task="classification")
    assert (fed.task, fed.classes) == ("classification", ("images", "masks"))
    assert data.load(fed.source).task == "classification"


def spoil_missing(root):
    (root / "north" / "masks" / "3.png").unlink()


def spoil_left_over(root):
    (root / "north" / "images" / "3.jpg").unlink()


def spoil_size(root):
    Image.fromarray(mask_of(3)[:4]).save(root / "north" / "masks" / "3.png")


def spoil_colour(root):
    Image.new("RGB", SIZE[::-1]).save(root / "north" / "masks" / "3.png")


def spoil_numbers(root):
    Image.fromarray(mask_of(3, 7)).save(root / "north" / "masks" / "3.png")


def spoil_deep(root):
    Image.fromarray(mask_of(3).astype(np.uint16)).save(root / "north" / "masks" / "3.png")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_missing, r"3.jpg has no mask: put one called 3.png"),
        (spoil_left_over, r"3.png is the mask of no image"),
        (spoil_size, r"3.png has 8x4 pixels, its image 8x6"),
        (spoil_colour, r"3.png is in colour \(mode RGB\)"),
        (spoil_numbers, r"hold the numbers 0, 7, 255: count the classes from 0"),
        (spoil_deep, r"more than 8 bits"),
    ],
)
def test_what_does_not_fit_is_named(scans, spoil, message):
    spoil(scans)
    with pytest.raises(BadData, match=message) as caught:
        data.folder(scans)
    assert "\n" not in str(caught.value)


def test_options_that_do_not_fit(scans, tmp_path):
    with pytest.raises(UnknownName, match="task 'segment'"):
        data.folder(scans, task="segment")
    with pytest.raises(BadData, match="hold 255, and the 3 classes count from 0 to 2"):
        data.folder(scans, classes=["a", "b", "c"])
    (tmp_path / "photos" / "lab" / "cat").mkdir(parents=True)
    Image.new("L", (4, 4)).save(tmp_path / "photos" / "lab" / "cat" / "1.png")
    with pytest.raises(BadData, match="holds 'cat', and a segmentation takes"):
        data.folder(tmp_path / "photos", task="segmentation")
    with pytest.raises(BadData, match="called like their folders"):
        data.folder(tmp_path / "photos", classes=["dog"])


def test_gaps_are_fine_where_all_classes_have_names():
    y = torch.tensor([[[0, 2]]], dtype=torch.uint8)
    names, found = masks.numbered({"a": y}, ["a", "b", "c"], "here")
    assert names == ("a", "b", "c") and torch.equal(found["a"], y)
    with pytest.raises(BadData, match="the numbers 0, 2"):
        masks.numbered({"a": y}, None, "here")
