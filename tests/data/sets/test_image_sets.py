"""PACS, Office-Home, DomainNet, Tiny-ImageNet, RxRx1 on small copies of their layouts."""

import pytest
import torch

from fedshift import data
from fedshift.data.sets import domainnet, pacs, rxrx1, tiny_imagenet
from fedshift.errors import BadData

from . import making

PACS = ("art_painting", "cartoon", "photo", "sketch")


@pytest.fixture
def pacs_home(home):
    """Seven classes of ten pictures; the official lists name the last picture of each crossval."""
    making.tree(home / "PACS" / "kfold", PACS, pacs.CLASSES)
    for d in PACS:
        for part, numbers in (("train", range(9)), ("crossval", [9])):
            lines = [
                f"{d}/{c}/{c}_{i:03d}.png {k + 1}"
                for k, c in enumerate(pacs.CLASSES) for i in numbers
            ]  # fmt: skip
            (home / "PACS" / f"{d}_{part}_kfold.txt").write_text("\n".join(lines) + "\n")
    return home / "PACS"


def test_pacs_follows_the_official_lists(pacs_home):
    fed, _ = making.loaded("pacs?size=8")
    assert set(making.sizes(fed).values()) == {(56, 7, 7)}  # a tenth of 63 validates
    assert fed.names == ("art", "cartoon", "photo", "sketch") and fed.classes == pacs.CLASSES
    assert fed["photo"].test.y.tolist() == list(range(7))
    assert torch.equal(fed["sketch"].train.x[:, 1, 3, 3].long(), fed["sketch"].train.y)


def test_fraug_trains_on_a_tenth(pacs_home):
    assert set(making.sizes(making.loaded("pacs/fraug?size=8")[0]).values()) == {(5, 7, 7)}


def test_fedlsi_tests_on_whole_domains(pacs_home):
    fed, _ = making.loaded("pacs/fedlsi")
    assert set(making.sizes(fed).values()) == {(63, 7, 70)}
    assert fed["art"].test.x.shape[2:] == (256, 256)


def test_fedbr_cuts_domains_by_class(pacs_home):
    fed, _ = making.loaded("pacs/fedbr")
    assert len(fed.clients) == 8 and fed.names[:2] == ("art-a", "art-b")
    assert set(fed["photo-a"].train.y.tolist()) == {0, 1, 2, 3}
    assert set(fed["photo-b"].train.y.tolist()) == {4, 5, 6}
    assert torch.equal(fed["photo-a"].test.x, fed["photo-b"].test.x)
    assert fed["photo-a"].test.y.unique().tolist() == list(range(7))
    whole = sum(len(c.train) + len(c.val) for c in fed.clients if "photo" in c.name)
    assert whole + len(fed["photo-a"].test) == 70


def test_without_lists_the_split_is_drawn_and_told(home):
    making.tree(home / "pacs", PACS, pacs.CLASSES)
    fed, warned = making.loaded("pacs?size=8")
    assert set(making.sizes(fed).values()) == {(56, 7, 7)}
    assert any("is not the official one" in text for text in warned)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_listed_picture_that_is_gone(pacs_home):
    (pacs_home / "kfold" / "photo" / "dog" / "dog_004.png").unlink()
    with pytest.raises(BadData, match=r"photo_train_kfold\.txt names dog/dog_004\.png"):
        data.load("pacs")


OFFICE_HOME = ("Art", "Clipart", "Product", "Real World")


def test_office_home(home):
    kinds = [f"Kind_{k:02d}" for k in range(65)]
    making.tree(home / "OfficeHomeDataset_10072016", OFFICE_HOME, kinds, each=2, suffix=".jpg")
    fed, _ = making.loaded("office-home?size=8")
    assert fed.names == ("art", "clipart", "product", "real-world") and len(fed.classes) == 65
    assert set(making.sizes(fed).values()) == {(105, 12, 13)}
    small, _ = making.loaded("office-home/fraug?size=8")
    assert set(making.sizes(small).values()) == {(10, 12, 13)}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_office_home_lacks_classes(home):
    making.tree(home / "office-home", OFFICE_HOME, ["a", "b"], each=1)
    with pytest.raises(BadData, match="2 classes, not 65"):
        data.load("office-home")


def test_domainnet(home):
    making.tree(home / "domainnet", domainnet.DOMAINS, [*domainnet.TEN, "zigzag"], each=10)
    found = {
        name: making.loaded(f"domainnet{name}?size=8")[0] for name in ("", "/fedfa", "/fedlsi")
    }
    assert set(making.sizes(found[""]).values()) == {(64, 16, 20)}
    assert set(making.sizes(found["/fedfa"]).values()) == {(25, 16, 20)}
    assert set(making.sizes(found["/fedlsi"]).values()) == {(64, 16, 100)}
    assert found[""].classes == domainnet.TEN  # zigzag is none of the ten


def test_the_published_numbers_of_domainnet():
    """FedFA's table 2, from FedBN's lists of 2103, 2626, 2472, 4000, 4864, 2213 images."""
    found = [domainnet.sizes(n, 0.4) for n in domainnet.PUBLISHED.values()]
    assert found == [
        (672, 420, 526), (840, 525, 657), (791, 494, 619),
        (1280, 800, 1000), (1556, 972, 1217), (708, 442, 554),
    ]  # fmt: skip
    code = [domainnet.sizes(n, 0.6)[0] for n in domainnet.PUBLISHED.values()]
    assert code == [1009, 1260, 1186, 1920, 2334, 1062]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_domainnet_whole(home):
    making.tree(home / "domainnet", domainnet.DOMAINS, ["bird", "zigzag"], each=10)
    with pytest.raises(BadData, match=r"clipart_train\.txt is not there"):
        data.load("domainnet/full")
    for d in domainnet.DOMAINS:
        for part, numbers in (("train", range(7)), ("test", range(7, 10))):
            names = [f"{d}/{c}/{c}_{i:03d}.png 0" for c in ("bird", "zigzag") for i in numbers]
            (home / "domainnet" / f"{d}_{part}.txt").write_text("\n".join(names))
    fed, warned = making.loaded("domainnet/full?size=8")
    assert set(making.sizes(fed).values()) == {(13, 1, 6)} and fed.classes == ("bird", "zigzag")
    assert any("2 of 345 classes" in text for text in warned)


def test_tiny_imagenet(home, monkeypatch):
    monkeypatch.setattr(tiny_imagenet, "CLIENTS", 4)
    root, kinds = home / "tiny-imagenet-200", ("n02", "n01")
    for c in kinds:
        making.tree(root / "train" / c, ["images"], [""], each=0)
        for i in range(30):
            making.picture(root / "train" / c / "images" / f"{c}_{i}.JPEG", colour=i)
    for i in range(8):
        making.picture(root / "val" / "images" / f"val_{i}.JPEG")
    rows = (f"val_{i}.JPEG\t{kinds[i % 2]}\t0\t0\t62\t62" for i in range(8))
    (root / "val" / "val_annotations.txt").write_text("\n".join(rows))
    (root / "wnids.txt").write_text("\n".join(kinds))
    fed, warned = making.loaded("tiny-imagenet")
    assert set(making.sizes(fed).values()) == {(15, 0, 2)} and fed.classes == ("n01", "n02")
    assert fed.clients[0].train.x.shape[1:] == (3, 64, 64)
    assert any("60 of 100000 train" in text for text in warned)
    skewed, _ = making.loaded("tiny-imagenet/fedfa-0.6")
    assert sum(len(c.train) for c in skewed.clients) == 60
    assert min(len(c.train) for c in skewed.clients) >= 10


def test_rxrx1(home):
    root = home / "rxrx1_v1.0"
    rows = ["cell_type,dataset,experiment,plate,well,site,sirna_id"]
    for cell in rxrx1.CELLS:
        for e in range(1, 5):
            for k, sirna in enumerate((13, 51, 7)):  # 7 is none of the 48
                for well in range(10):
                    name = f"{cell}-{e:02d}"
                    making.picture(
                        root / "images" / name / "Plate1" / f"{k}{well:02d}_s1.png", colour=k
                    )
                    rows.append(f"{cell},train,{name},1,{k}{well:02d},1,{sirna}")
    root.joinpath("metadata.csv").write_text("\n".join(rows))
    fed, _ = making.loaded("rxrx1/fraug-8?size=8")
    assert fed.names[:3] == ("hepg2-1", "hepg2-2", "huvec-1") and len(fed.clients) == 8
    assert set(making.sizes(fed).values()) == {(14, 2, 4)} and len(fed.classes) == 48
    assert fed["rpe-1"].train.y.bincount().tolist() == [7, 7]
    assert len(making.loaded("rxrx1?size=8")[0].clients) == 16
