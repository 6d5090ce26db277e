"""Office-Caltech10: the papers' numbers, splits from a file or drawn, and what goes wrong."""

import csv

import pytest
import torch

from fedshift import data
from fedshift.data.augment import Flip, Rotate
from fedshift.data.sets.office_caltech import CLASSES, SPELT
from fedshift.errors import BadData, UnknownName

from . import making

DOMAINS = ("amazon", "caltech10", "dslr", "webcam")


@pytest.fixture
def office(home):
    making.tree(home / "office_caltech10", DOMAINS, CLASSES, each=5)
    return home / "office_caltech10"


def test_drawn_splits_have_the_papers_shares(office):
    fed, warned = making.loaded("office-caltech10?size=8")
    assert set(making.sizes(fed).values()) == {(24, 16, 10)}
    assert fed.classes == CLASSES and fed.names == DOMAINS
    assert any("50 of 958 amazon" in text for text in warned)
    for client in fed.clients:
        assert client.test.y.bincount().tolist() == [1] * 10
        colour = client.train.x[:, 0, 0, 0]  # the picture of class k has colour k
        assert torch.equal(colour.long(), client.train.y)


def test_the_seed_draws_and_neighbours_do_not_matter(office):
    first, again = (making.loaded("office-caltech10?size=8")[0]["dslr"].test for _ in range(2))
    assert torch.equal(first.x, again.x)
    draws = {tuple(_files(office, seed)) for seed in (0, 1)}
    assert len(draws) == 2


def _files(office, seed):
    from fedshift.data.sets import cutting, trees

    tree = trees.scan("office-caltech10", "", dict.fromkeys(DOMAINS, ()), classes=CLASSES)
    cut = cutting.pieces(tree.labels("dslr"), (24, 16, 10), tree.order("dslr", seed), "")
    return [tree.domains["dslr"][k].path.name for k in cut[2].tolist()]


def test_augmentation_is_fedbns_or_none(office):
    fed, _ = making.loaded("office-caltech10?size=8")
    assert fed.pipeline.augment == (Flip(0.5), Rotate(30.0))
    plain, _ = making.loaded("office-caltech10/fedfa?size=8")
    assert plain.pipeline.augment == () and plain.pipeline.mean == ()


def test_other_spellings_of_classes(home):
    kinds = [*CLASSES[1:5], "back_pack", "laptop_computer", *CLASSES[6:]]
    assert SPELT["laptop_computer"] == "laptop"
    making.tree(home / "office_caltech_10", DOMAINS, kinds, each=5)
    fed, _ = making.loaded("office-caltech10?size=8")
    assert fed.classes == CLASSES
    assert torch.cat([c.test.y for c in fed.clients]).bincount().tolist() == [4] * 10


def _write(office, rows):
    with (office / "split.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "class", "file", "split"])
        writer.writerows(rows)


def _rows(splits="train train val test test"):
    return [
        (d, c, f"{c}_{i:03d}.png", split)
        for d in DOMAINS for c in CLASSES for i, split in enumerate(splits.split())
    ]  # fmt: skip


def test_a_file_decides_the_splits(office):
    for d, c, file, _ in _rows():  # the colour is the picture's number
        making.picture(office / d / c / file, colour=int(file[-7:-4]))
    _write(office, _rows())
    fed, _ = making.loaded("office-caltech10?size=8")
    assert set(making.sizes(fed).values()) == {(20, 10, 20)}
    for client in fed.clients:
        seen = [set(s.x.flatten().tolist()) for s in (client.train, client.val, client.test)]
        assert seen == [{0, 1}, {2}, {3, 4}]


def test_images_that_the_file_does_not_name_are_told(office):
    _write(office, _rows("train train val test"))
    fed, warned = making.loaded("office-caltech10?size=8")
    assert making.sizes(fed)["webcam"] == (20, 10, 10)
    assert any("does not name 40 of the images" in text for text in warned)


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        (("amazon", "mug", "gone.png", "test"), BadData, r"names mug/gone\.png"),
        (("amazone", "mug", "mug_000.png", "test"), UnknownName, "did you mean amazon"),
        (("amazon", "mug", "mug_000.png", "tests"), BadData, "a split 'tests'"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_file_that_does_not_fit_is_refused(office, row, error, message):
    _write(office, [row])
    with pytest.raises(error, match=message):
        data.load("office-caltech10?size=8")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_truncated_picture_is_named(office):
    path = office / "dslr" / "mug" / "mug_002.png"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(BadData, match=r"dslr/mug/mug_002\.png"):
        data.load("office-caltech10?size=8")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_missing_domain_is_named(home):
    making.tree(home / "office-caltech10", DOMAINS[:3], CLASSES, each=1)
    with pytest.raises(BadData, match="has no folder 'webcam'"):
        data.load("office-caltech10")


def test_options_that_it_has_not(office):
    with pytest.raises(data.registry.BadValue, match="no option 'shares': it takes seed, size"):
        data.load("office-caltech10?shares=[0.5,0.25,0.25]")


def test_pictures_decode_once(office, monkeypatch):
    making.loaded("office-caltech10?size=8")
    from fedshift.data import images

    monkeypatch.setattr(images, "decode", lambda *_: pytest.fail("decoded again"))
    making.loaded("office-caltech10?size=8&seed=4")
    making.loaded("office-caltech10/fedfa?size=8")


@pytest.mark.filterwarnings("error::UserWarning")
def test_the_real_set_has_the_published_splits(real):
    if not (real / "office_caltech10").is_dir():
        pytest.skip("no Office-Caltech10")
    fed = data.load("office-caltech10/fedfa?size=32")
    assert making.sizes(fed) == {
        "amazon": (459, 307, 192),
        "caltech10": (538, 360, 225),
        "dslr": (75, 50, 32),
        "webcam": (141, 95, 59),
    }
    assert fed["amazon"].train.x.shape == (459, 3, 32, 32)
    total = torch.cat([s.y for c in fed.clients for s in (c.train, c.val, c.test)]).bincount()
    assert int(total.sum()) == 2533 and len(total) == 10
