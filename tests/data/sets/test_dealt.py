"""CIFAR, MNIST and EMNIST dealt to clients: who gets what, and who is tested on what."""

import pytest
import torch

from fedshift import data
from fedshift.data.sets import cifar, handwriting
from fedshift.data.sets.capped import capped_dirichlet
from fedshift.data.sets.fedgen_deal import fedgen_deal
from fedshift.errors import BadData

from . import making


def _cifar_10(folder, train=200, test=50):
    folder.mkdir(parents=True)
    for name, n in [*((f"data_batch_{k}", train) for k in range(1, 6)), ("test_batch", test)]:
        table = making.noise(n, 3073, seed=len(name) + n)
        table[:, 0] = torch.arange(n) % 10
        (folder / f"{name}.bin").write_bytes(table.tobytes())


def test_cifar_10_in_binary(home):
    _cifar_10(home / "cifar-10-batches-bin")
    fed, warned = making.loaded("cifar-10")
    assert set(making.sizes(fed).values()) == {(80, 20, 5)} and fed.classes[3] == "cat"
    assert any("1000 of 50000 train" in text for text in warned)
    x = making.noise(200, 3073, seed=12 + 200)[0, 1:].reshape(3, 32, 32)  # red, green, blue planes
    assert any(torch.equal(torch.from_numpy(x), y) for c in fed.clients for y in c.train.x)


def test_the_version_for_python_is_refused_by_name(home):
    (home / "cifar-10-batches-py").mkdir()
    (home / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"\x80\x02}q")
    with pytest.raises(
        BadData, match=r"a pickle.*take the binary version, cifar-10-binary\.tar\.gz"
    ):
        data.load("cifar-10")


def test_a_batch_that_is_cut_short(home):
    _cifar_10(home / "cifar-10")
    path = home / "cifar-10" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(BadData, match=r"data_batch_3\.bin has 614595 bytes"):
        data.load("cifar-10")


def test_cifar_100_takes_the_fine_labels(home):
    (home / "cifar-100-binary").mkdir()
    for name, n in (("train", 1000), ("test", 100)):
        table = making.noise(n, 3074)
        table[:, 0], table[:, 1] = 7, torch.arange(n) % 100
        (home / "cifar-100-binary" / f"{name}.bin").write_bytes(table.tobytes())
    fed, _ = making.loaded("cifar-100/fedbr")
    assert set(making.sizes(fed).values()) == {(80, 20, 10)} and len(fed.classes) == 100
    everything = torch.cat([s.y for c in fed.clients for s in (c.train, c.val)])
    assert everything.bincount().tolist() == [10] * 100


def test_fedfa_deals_to_a_hundred(home):
    _cifar_10(home / "cifar-10", train=600, test=200)
    fed, _ = making.loaded("cifar-10/fedfa-0.6")
    assert len(fed.clients) == 100 and min(len(c.train) for c in fed.clients) >= 10
    assert sum(len(c.train) for c in fed.clients) == 3000
    assert {len(c.test) for c in fed.clients} == {2}


def test_fedbr_turns_images_by_a_mixture_of_ten_angles(home):
    _cifar_10(home / "cifar-10", train=40, test=20)
    fed, _ = making.loaded("cifar-10/fedbr")
    assert set(making.sizes(fed).values()) == {(16, 4, 20)}
    upright, quarter = fed.clients[0].test, fed.clients[6].test
    assert torch.equal(quarter.x, torch.rot90(upright.x, 1, (2, 3)))
    black = [(s == 0).all(1)[:, 0, 0].float().mean() for c in fed.clients for s in (c.train.x,)]
    assert 0.2 < float(torch.stack(black).mean()) < 1.0  # corners of turned images are black
    many, _ = making.loaded("cifar-10/fedbr-100")
    assert torch.equal(
        torch.cat([c.test.x for c in many.clients[6::10]]).flatten(1).sum(0),
        quarter.x.flatten(1).sum(0),
    )  # the ten clients of an angle share the whole test set


def test_a_client_sees_few_angles():
    train = making.noise(4000, 1, 8, 8)
    pool = cifar.Samples(torch.from_numpy(train), torch.arange(4000) % 10)
    parts = list(torch.arange(4000).split(400))
    turned = cifar.at_angles(pool, parts, seed=3)
    upright = [(turned.x[p] == pool.x[p]).flatten(1).all(1).float().mean() for p in parts]
    assert max(upright) > 0.5 and min(upright) < 0.05  # Dirichlet(0.1): most of few


def test_emnist_lies_upright_and_counts_from_0(home):
    for split, n in (("train", 520), ("test", 520)):
        stem = home / "emnist" / "gzip" / f"emnist-letters-{split}"
        making.idx(stem.with_name(f"{stem.name}-images-idx3-ubyte.gz"), making.noise(n, 28, 28))
        making.idx(
            stem.with_name(f"{stem.name}-labels-idx1-ubyte.gz"), torch.arange(n).numpy() % 26 + 1
        )
    fed, _ = making.loaded("emnist")
    assert set(making.sizes(fed).values()) == {(26, 0, 26)} and fed.classes[0] == "a"
    first = torch.from_numpy(making.noise(520, 28, 28)[0].T.copy())  # labelled a
    owner = [c for c in fed.clients if any(torch.equal(first, x[0]) for x in c.train.x)]
    assert len(owner) == 1


def test_fedgenps_sizes():
    """10 % of MNIST keeps 300 of each class (really 5 %), 5 % 150; of EMNIST 10 % keeps 480."""
    mnist = torch.arange(60_000) % 10
    for share, each in ((0.1, 300), (0.05, 150)):
        parts = fedgen_deal(mnist, 20, 10.0, share=share, minimum=10)
        assert mnist[torch.cat(parts)].bincount().tolist() == [each] * 10
    letters = torch.arange(124_800) % 26
    assert letters[handwriting.kept(letters, 10, 0)].bincount().tolist() == [480] * 26


def test_mnist_is_dealt_as_by_the_released_code():
    """Sizes that its rule and seed gave when written out by itself, with lists."""
    counts = torch.tensor([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
    y = torch.repeat_interleave(torch.arange(10), counts)
    parts = fedgen_deal(y, 20, 0.1, share=1.0, minimum=10)
    printed = [3029, 4537, 2051, 3708, 2827, 1021, 614, 2698, 6668, 3178]
    printed += [2354, 3253, 924, 4433, 3023, 809, 4026, 2863, 4450, 3534]
    assert list(map(len, parts)) == printed
    assert sorted(torch.cat(parts).tolist()) == list(range(60_000))


def test_a_deal_that_cannot_be_is_refused():
    with pytest.raises(BadData, match="raise alpha, or take fewer clients"):
        fedgen_deal(torch.arange(40) % 10, 20, 1.0, share=1.0, minimum=3)


def test_fedgenp_tests_a_client_on_the_classes_that_it_owns(home):
    making.mnist(home / "mnist", train=2000, test=400)
    fed, _ = making.loaded("mnist/fedgenp-100-0.1")
    assert len(fed.clients) == 20 and sum(len(c.train) for c in fed.clients) == 2000
    for client in fed.clients:
        assert len(client.val) == 0
        own = client.train.y.unique().tolist()
        assert client.test.y.bincount(minlength=10).tolist() == [2 * (c in own) for c in range(10)]
    rows = torch.cat([c.test.x for c in fed.clients]).flatten(1)
    assert len(torch.unique(rows, dim=0)) == len(rows)  # nobody shares a test image


def test_draws_in_which_who_has_enough_gets_no_more():
    """Who holds `most` gets nothing of later classes, so nobody exceeds it by more than a class."""
    y = torch.arange(4000) % 10
    parts = capped_dirichlet(y, 10, 0.05, most=400, minimum=100, seed=1)
    assert sorted(torch.cat(parts).tolist()) == list(range(4000))
    assert min(map(len, parts)) >= 100
    for seed in range(8):  # without the cap, some client would get three classes
        sizes = map(len, capped_dirichlet(y, 10, 0.05, most=400, minimum=0, seed=seed))
        assert max(sizes) < 400 + 400
    assert sum(len(y[p].unique()) for p in parts) < 75  # of 100: most see few
    again = capped_dirichlet(y, 10, 0.05, most=400, minimum=100, seed=1)
    assert all(map(torch.equal, parts, again))


def test_a_draw_that_cannot_be():
    with pytest.raises(BadData, match="each of 4 clients has 30: raise alpha"):
        capped_dirichlet(torch.arange(100) % 2, 4, 1.0, most=25, minimum=30)
