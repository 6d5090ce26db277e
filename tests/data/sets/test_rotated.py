"""RotatedMNIST: which angle, how many, which classes."""

import pytest
import torch

from fedshift import data

from . import making


@pytest.fixture
def fed(home):
    making.mnist(home / "mnist", train=2000, test=50)
    return making.loaded("rotated-mnist")[0]


def test_ten_angles_and_sizes(fed):
    assert fed.names[0] == "000-degrees" and fed.names[9] == "135-degrees"
    assert set(making.sizes(fed).values()) == {(160, 40, 50)}
    for client in fed.clients:
        both = torch.cat([client.train.y, client.val.y])
        assert both.bincount().tolist() == [20] * 10


def test_all_are_tested_on_the_same_digits_each_at_its_angle(fed):
    upright = fed["000-degrees"].test
    quarter = fed["090-degrees"].test
    assert torch.equal(quarter.x, torch.rot90(upright.x, 1, (2, 3)))
    assert all(torch.equal(c.test.y, upright.y) for c in fed.clients)
    assert not torch.equal(fed["015-degrees"].test.x, upright.x)


def test_fedbr_gives_few_classes_a_client(home):
    making.mnist(home / "mnist", train=2000, test=50)
    seen = {}
    for name in ("rotated-mnist/fedbr", "rotated-mnist/fedbr-even"):
        fed, _ = making.loaded(name)
        assert set(making.sizes(fed).values()) == {(160, 40, 50)}
        top = [c.train.y.bincount(minlength=10).max() / len(c.train) for c in fed.clients]
        seen[name] = float(torch.stack(top).mean())
    # Dirichlet(0.01) concentrates more than Dirichlet(0.1), and both far more than a tenth.
    assert seen["rotated-mnist/fedbr"] > seen["rotated-mnist/fedbr-even"] > 0.4


@pytest.mark.filterwarnings("error::UserWarning")
def test_real_mnist_is_whole(real):
    fed = data.load("rotated-mnist/fedbr")
    assert set(making.sizes(fed).values()) == {(4800, 1200, 10_000)}
    counts = fed["045-degrees"].test.y.bincount().tolist()
    assert counts == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    everything = torch.cat([part.y for c in fed.clients for part in (c.train, c.val)])
    assert everything.bincount().tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip
