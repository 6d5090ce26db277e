"""The digits as federations: sizes, what is absent, and the recipe of MNIST-M."""

import pytest
import torch

from fedshift import data
from fedshift.data.sets import mnist_m
from fedshift.errors import BadData

from . import making


def _all_but(home, *absent):
    makers = {
        "mnist": lambda f: making.mnist(f),
        "svhn": lambda f: [making.mat(f / f"{s}_32x32.mat", 650) for s in ("train", "test")],
        "usps": lambda f: making.usps(f),
        "synth-digits": lambda f: [
            making.mat(f / f"synth_{s}_32x32.mat", 650) for s in ("train", "test")
        ],
        "mnist-m": lambda f: making.mnist_m(f),
    }
    for name, make in makers.items():
        if name not in absent:
            make(home / name)


def test_five_domains(home):
    _all_but(home)
    fed, warned = making.loaded("digits")
    assert set(making.sizes(fed).values()) == {(743, 186, 260)}  # a fifth of 1300 is for testing
    assert fed.names == ("mnist", "svhn", "usps", "synth-digits", "mnist-m")
    assert sum("not the published set" in text for text in warned) == 5
    for client in fed.clients:
        assert client.train.x.shape[1:] == (3, 28, 28) and client.train.x.dtype == torch.uint8
        counts = client.train.y.bincount(minlength=10)
        assert counts.min() >= 74 and counts.max() <= 75  # class by class
    grey = fed["mnist"].train.x
    assert torch.equal(grey[:, 0], grey[:, 2])
    assert set(fed["usps"].train.x.unique().tolist()) > {0, 255}


def test_fraug_takes_a_hundredth_of_four(home):
    _all_but(home, "synth-digits")
    fed, _ = making.loaded("digits/fraug?seed=2")
    assert set(making.sizes(fed).values()) == {(10, 117, 130)}
    assert fed.names == ("mnist", "mnist-m", "svhn", "usps")
    assert fed["usps"].val.x.shape[1:] == (3, 32, 32)
    other, _ = making.loaded("digits/fraug")
    assert not torch.equal(fed["mnist"].train.x, other["mnist"].train.x)


def test_the_three_splits_of_a_domain_share_no_image(home):
    _all_but(home, "synth-digits")
    client = making.loaded("digits/fraug")[0]["mnist-m"]
    rows = torch.cat([client.train.x, client.val.x, client.test.x]).flatten(1)
    assert len(torch.unique(rows, dim=0)) == len(rows)


def test_an_absent_domain_is_refused_with_the_remedies(home):
    _all_but(home, "synth-digits", "mnist-m")
    with pytest.raises(BadData, match=r"synth-digits with synth_train_32x32\.mat.*digits/present"):
        data.load("digits")
    with pytest.raises(BadData, match=r"mnist_m_train/.*digits/fraug-present"):
        data.load("digits/fraug")


def test_what_is_there_may_be_had_and_the_rest_is_named(home):
    _all_but(home, "synth-digits", "mnist-m", "svhn")
    fed, warned = making.loaded("digits/present")
    assert fed.names == ("mnist", "usps")
    assert any("2 clients here, without svhn, synth-digits, mnist-m" in text for text in warned)


def test_one_domain_is_no_federation(home):
    making.mnist(home / "mnist")
    with pytest.raises(BadData, match="there are mnist: a federation needs two"):
        data.load("digits/present")


def test_a_folder_without_its_files(home):
    (home / "mnist").mkdir()
    with pytest.raises(BadData, match=f"{home}/mnist holds nothing of 'mnist'.*train-images-idx3"):
        data.load("mnist")


def test_a_picture_that_cannot_be_read_is_named(home):
    making.mnist_m(home / "mnist-m", 20, 10)
    making.mnist(home / "mnist")
    (home / "mnist-m" / "mnist_m_train" / "00000003.png").write_bytes(b"\x89PNG cut")
    with pytest.raises(BadData, match=r"00000003\.png"), pytest.warns(UserWarning):
        data.load("digits/present")


def test_mnist_m_is_made_of_mnist_and_photographs(home):
    making.mnist(home / "mnist", 1000, 300)
    making.usps(home / "usps")
    photograph = making.noise(60, 90, 3)
    making.picture(home / "BSDS500" / "images" / "train" / "a.jpg", photograph)
    fed, warned = making.loaded("digits/present")
    assert fed.names == ("mnist", "usps", "mnist-m")
    assert any("made here from MNIST and BSDS500" in text for text in warned)
    assert making.sizes(fed)["mnist-m"] == (743, 186, 260)


def test_a_blend_is_the_difference_of_digit_and_window():
    photograph = torch.from_numpy(making.noise(3, 40, 50))
    digits = torch.zeros(6, 1, 28, 28, dtype=torch.uint8)
    digits[3:] = 255
    out = mnist_m.blend(digits, [photograph], seed=1)
    windows = photograph.unfold(1, 28, 1).unfold(2, 28, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
    for k in range(6):
        window = out[k] if k < 3 else 255 - out[k]  # |window - 0| and |window - 255|
        assert bool((windows == window).flatten(1).all(1).any()), k
    assert not torch.equal(out[0], out[1])  # each digit has a window of its own


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_real_digits(real):
    """MNIST is whole, USPS cut into FedBN's 7438 and 1860, the others as far as they are there."""
    fed = data.load("digits/present")
    found = making.sizes(fed)
    assert found["mnist"] == (743, 186, 14_000) and found["usps"] == (743, 186, 1860)
    mean = {c.name: float(c.test.x.float().mean()) / 255 for c in fed.clients}
    assert mean["mnist"] == pytest.approx(0.1307, abs=0.002)
    if "svhn" in found:
        assert mean["svhn"] == pytest.approx(0.452, abs=0.01)  # published 0.4377 0.4438 0.4728
    fraug = making.sizes(data.load("digits/fraug-present"))
    assert fraug["mnist"] == (567, 6300, 7000) and fraug["usps"] == (75, 837, 930)
