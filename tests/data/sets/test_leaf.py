"""FEMNIST and CelebA as LEAF writes them."""

import json

import pytest
import torch

from fedshift import data
from fedshift.data.sets import leaf
from fedshift.errors import BadData

from . import making


def _write(path, users):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {
        "users": list(users),
        "num_samples": [len(d["y"]) for d in users.values()],
        "user_data": users,
    }
    path.write_text(json.dumps(table))


def test_femnist_has_a_client_for_each_writer(home):
    for split, n in (("train", 6), ("test", 2)):
        for k in range(2):  # two files, two writers each
            users = {
                f"f{k}{w}_0{w}": {"x": [[i / 255] * 784 for i in range(n)], "y": list(range(n))}
                for w in range(2)
            }
            _write(home / "femnist" / "data" / split / f"part_{k}.json", users)
    fed, warned = making.loaded("femnist")
    assert fed.names == ("f00_00", "f01_01", "f10_00", "f11_01") and len(fed.classes) == 62
    assert set(making.sizes(fed).values()) == {(6, 0, 2)}
    assert fed["f00_00"].train.x[:, 0, 3, 3].tolist() == list(range(6))
    assert any("4 of 3400 writers" in text for text in warned)


def test_a_broken_json_file_is_named(home):
    for split in ("train", "test"):
        _write(home / "femnist" / split / "a.json", {"u": {"x": [[0] * 784], "y": [0]}})
    (home / "femnist" / "test" / "a.json").write_text('{"users": ["u"], "user_da')
    with pytest.raises(BadData, match=r"test/a\.json"):
        data.load("femnist")


@pytest.fixture
def celeba(home, monkeypatch):
    monkeypatch.setattr(leaf, "_CELEBRITIES", 6)
    monkeypatch.setattr(leaf, "_TOGETHER", 2)
    numbers = iter(range(10_000))
    for split, n in (("train", 3), ("test", 1)):
        users = {}
        for u in range(8):
            names = [f"{next(numbers):06d}.jpg" for _ in range(n)]
            for name in names:
                making.picture(home / "celeba/data/raw/img_align_celeba" / name, colour=u * 20)
            users[str(u)] = {"x": names, "y": [u % 2] * n}
        _write(home / "celeba" / "data" / split / "all.json", users)
    return home / "celeba"


def test_celeba_groups_celebrities(celeba):
    fed, _ = making.loaded("celeba")
    assert making.sizes(fed) == {f"client-{k:02d}": (6, 0, 2) for k in range(3)}
    assert fed.clients[0].train.x.shape[1:] == (3, 84, 84)
    for client in fed.clients:  # the colour says who it is, and who it is says whether they smile
        who = (client.train.x[:, 0, 0, 0].float() / 20).round().long()
        assert len(who.unique()) == 2 and torch.equal(who % 2, client.train.y)


def test_fedgenps_network_sees_0_to_255(celeba):
    fed, _ = making.loaded("celeba/fedgenp")
    x = fed.clients[0].train.x
    assert torch.allclose(fed.pipeline(x), x.float(), atol=1e-3)


def test_too_few_celebrities(celeba, monkeypatch):
    monkeypatch.setattr(leaf, "_CELEBRITIES", 250)
    with pytest.raises(BadData, match=r"8 celebrities .* 250 are taken"):
        data.load("celeba")
