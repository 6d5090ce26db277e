"""Image folders: layouts, splitting, decoding, the mapped cache, and what users get wrong."""

import numpy as np
import pytest
import torch
from PIL import Image

from fedshift import data
from fedshift.data import cache
from fedshift.errors import BadData, BadValue


def picture(path, colour, size=(10, 8), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path):
    """Two clients, two classes, ten images each; the red value counts."""
    root = tmp_path / "photos"
    for c, client in enumerate(("lab", "street")):
        for k, label in enumerate(("cat", "dog")):
            for i in range(10):
                picture(root / client / label / f"{i}.png", (c * 100 + k * 20 + i, 50, 200))
    return root


def reds(samples):
    return samples.x[:, 0, 0, 0].tolist()


def test_layout_and_pixels(photos):
    fed = data.folder(photos)
    assert fed.names == ("lab", "street") and fed.classes == ("cat", "dog")
    assert fed.name == "photos"
    client = fed["street"]
    assert [len(s) for s in (client.train, client.val, client.test)] == [12, 3, 5]
    assert client.train.x.dtype == torch.uint8 and client.train.x.shape[1:] == (3, 8, 10)
    everything = reds(client.train) + reds(client.val) + reds(client.test)
    assert sorted(everything) == [*range(100, 110), *range(120, 130)]
    assert client.train.y.tolist() == [int(r >= 120) for r in reds(client.train)]
    assert torch.bincount(client.train.y).tolist() == [6, 6]
    assert client.train.x[0, :, 3, 3].tolist()[1:] == [50, 200]


def test_split_follows_names_not_content_and_comes_again_by_source(photos):
    first = data.folder(photos, seed=2)
    assert reds(data.load(first.source)["lab"].train) == reds(first["lab"].train)
    assert reds(data.folder(photos)["lab"].train) != reds(first["lab"].train)
    copy = photos.parent / "elsewhere"
    photos.rename(copy)
    assert reds(data.folder(copy, seed=2)["lab"].train) == reds(first["lab"].train)


def test_split_folders(tmp_path):
    for part, n in (("train", 4), ("valid", 2), ("test", 3)):
        for i in range(n):
            picture(tmp_path / "d" / "a" / part / "x" / f"{i}.png", (i, 0, 0))
    picture(tmp_path / "d" / "b" / "train" / "x" / "0.png", (9, 0, 0))
    fed = data.folder(tmp_path / "d")
    assert [len(s) for s in (fed["a"].train, fed["a"].val, fed["a"].test)] == [4, 2, 3]
    assert len(fed["b"].train) == 1


def test_a_class_may_be_missing_and_sizes_are_made_one(photos):
    picture(photos / "lab" / "emu" / "0.jpg", (1, 2, 3), size=(30, 20))
    with pytest.raises(BadData, match=r"10x8.*30x20.*size=64"):
        data.folder(photos)
    fed = data.folder(photos, size=(4, 6))
    assert fed.classes == ("cat", "dog", "emu") and fed["lab"].train.x.shape[1:] == (3, 4, 6)
    assert data.load(fed.source)["lab"].train.x.shape[1:] == (3, 4, 6)
    assert data.load(f"{photos}?size=5")["lab"].train.x.shape[1:] == (3, 5, 5)


def test_grey_stays_grey_unless_colour_is_among_it(tmp_path):
    root = tmp_path / "d"
    for name in ("a.png", "b.pgm", "c.bmp", "d.tif"):
        picture(root / "a" / "x" / name, 77, mode="L")
    assert data.folder(root)["a"].train.x.shape[1:] == (1, 8, 10)
    picture(root / "a" / "x" / "g.png", 77, mode="P")
    picture(root / "a" / "x" / "h.png", (77, 77, 77, 0), mode="RGBA")
    Image.new("L", (10, 8), 77).save(root / "a" / "x" / "f.webp", lossless=True)
    picture(root / "a" / "x" / "i.gif", 77, mode="L")
    client = data.folder(root)["a"]
    x = torch.cat([client.train.x, client.val.x, client.test.x])
    assert x.shape == (8, 3, 8, 10)
    assert torch.equal(torch.unique(x[:, 0]).sort().values[-1:], torch.tensor([77]).byte())


def test_orientation_is_respected(tmp_path):
    path = tmp_path / "d" / "a" / "x" / "0.jpg"
    path.parent.mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (10, 4)).save(path, exif=exif)
    assert data.folder(tmp_path / "d")["a"].train.x.shape[2:] == (10, 4)


def test_mapped_samples_equal_those_in_memory_and_are_decoded_once(photos, monkeypatch):
    inside = data.folder(photos)
    mapped = data.folder(photos, memory=100)
    files = sorted(cache.directory().iterdir())
    assert len(files) == 6 and all(f.suffix == ".bin" for f in files)
    for name in inside.names:
        for part in ("train", "val", "test"):
            a, b = getattr(inside[name], part), getattr(mapped[name], part)
            assert torch.equal(a.x, b.x) and torch.equal(a.y, b.y)
    monkeypatch.setattr("fedshift.data.images.decode", None)  # a second decoding would fail
    again = data.folder(photos, memory=100)
    assert torch.equal(again["lab"].train.x, inside["lab"].train.x)
    again["lab"].train.x[:] = 0  # private: the file stays as it is
    assert torch.equal(data.folder(photos, memory=100)["lab"].train.x, inside["lab"].train.x)


def test_cache_notices_changes_and_damage(photos):
    data.folder(photos, memory=0)
    before = set(cache.directory().iterdir())
    for path in before:
        path.write_bytes(path.read_bytes()[:-1])
    assert torch.equal(
        data.folder(photos, memory=0)["lab"].test.x, data.folder(photos)["lab"].test.x
    )
    picture(photos / "lab" / "cat" / "0.png", (250, 0, 0))
    fed = data.folder(photos, memory=0)
    lab = fed["lab"]
    assert 250 in reds(lab.train) + reds(lab.val) + reds(lab.test)
    assert set(cache.directory().iterdir()) - before


def test_a_failed_decoding_leaves_no_file(photos):
    path = photos / "lab" / "cat" / "3.png"
    noise = np.random.default_rng(0).integers(0, 256, (8, 10, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:150])  # the head is whole, the pixels are not
    with pytest.raises(BadData, match=r"3\.png"):
        data.folder(photos, memory=0)
    assert all(f.suffix == ".bin" for f in cache.directory().iterdir())


def test_cache_that_cannot_be_written(photos, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(BadData, match="FEDSHIFT_CACHE"):
        data.folder(photos, memory=0)


def test_other_files_are_counted_aloud_and_hidden_ones_are_not(photos):
    (photos / "lab" / "cat" / ".DS_Store").touch()
    (photos / "lab" / "cat" / "Thumbs.db").touch()
    data.folder(photos)  # quiet: warnings are errors here
    (photos / "lab" / "cat" / "notes.txt").touch()
    (photos / "readme.md").touch()
    with pytest.warns(UserWarning, match="2 files"):
        data.folder(photos)


def break_image(root, content):
    path = root / "lab" / "dog" / "5.png"
    path.write_bytes(content if content is not None else path.read_bytes()[:50])


BROKEN = {
    "missing": (lambda r: None, "absent", "no folder"),
    "a file": (lambda r: (r / "f").touch(), "f", "is a file"),
    "empty": (lambda r: (r / "e").mkdir(), "e", "no client folders"),
    "empty client": (lambda r: (r / "none").mkdir(), "", "none holds no images"),
    "empty class": (lambda r: (r / "none" / "cat").mkdir(parents=True), "", "none holds no images"),
    "one level": (lambda r: None, "lab", "should hold class folders"),
    "no image": (lambda r: break_image(r, b"hello"), "", r"dog.5\.png"),
    "nothing inside": (lambda r: break_image(r, b""), "", r"dog.5\.png"),
    "cut short": (lambda r: break_image(r, None), "", r"dog.5\.png"),
    "mixed": (lambda r: (r / "lab" / "train").mkdir(), "", "'train' and 'cat'"),
    "deep": (
        lambda r: picture(r / "lab" / "cat" / "deep.png", 40000, mode="I;16"),
        "",
        "more than 8 bits",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_folders(photos, case):
    damage, where, message = BROKEN[case]
    damage(photos)
    with pytest.raises(BadData, match=message) as error:
        data.folder(photos / where)
    assert "\n" not in str(error.value)


def test_splits_without_training(tmp_path):
    for part in ("val", "test"):
        picture(tmp_path / "d" / "a" / part / "x" / "0.png", (1, 1, 1))
    with pytest.raises(BadData, match="no training data"):
        data.folder(tmp_path / "d")


@pytest.mark.parametrize("size", [0, -3, (4,), (4, 0), 2.5, "big"])
def test_bad_sizes(photos, size):
    with pytest.raises(BadValue, match="size"):
        data.folder(photos, size=size)


def test_store_streams_rows():
    seen = []

    def rows():
        for i in range(5):
            seen.append(i)
            yield np.full((2, 3), i, dtype=np.float32)

    x = cache.store(rows(), (5, 2, 3), "float32", mapped=True)
    assert seen == list(range(5)) and x[:, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert list(cache.directory().iterdir()) == []  # without a digest nothing stays
    assert cache.budget(7) == 7 and cache.budget(None) > 1 << 20
