"""Comparisons in Python."""

import pytest

import fedshift as fs
from fedshift.errors import BadRun, BadValue

PROTOCOL = fs.Protocol(rounds=1, steps=1, batch=8)


@pytest.fixture(scope="module")
def data():
    return fs.data.load("shifted-digits")


def test_methods_times_seeds_in_order(data):
    found = fs.compare(data, ["fedavg", fs.methods.FedProx(mu=1.0)], PROTOCOL, [3, 1], model="mlp")
    assert [(r.method, r.seed) for r in found.records] == [
        *(("fedavg", 3), ("fedavg", 1)),
        *(("fedprox", 3), ("fedprox", 1)),
    ]
    assert found.records[2].config["settings"] == {"fedprox.mu": 1.0}
    assert "2 seeds" in found.table() and found.table(format="csv").startswith("method,")
    assert "best-test" in found.table(select="best-test")


def test_the_folder_goes_on_with_the_same_and_refuses_another(data, tmp_path):
    out = tmp_path / "c"
    first = fs.compare(data, ["fedavg"], PROTOCOL, 2, model="mlp", out=out)
    again = fs.compare(data, ["fedavg"], PROTOCOL, 2, model="mlp", out=out)
    assert [r.rounds for r in first.records] == [r.rounds for r in again.records]
    assert (out / "fedavg" / "seed1" / "model.safetensors").is_file()
    with pytest.raises(BadRun, match="holds something"):
        fs.compare(data, ["fedavg"], PROTOCOL.replace(lr=0.5), 2, model="mlp", out=out)
    first.save(tmp_path / "page.html")
    assert "fedavg" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(("names", "seeds"), [([], 1), (["fedavg", "fedavg"], 1), (["fedavg"], 0)])
def test_nothing_and_the_same_twice_are_refused(data, names, seeds):
    with pytest.raises(BadValue):
        fs.compare(data, names, PROTOCOL, seeds, model="mlp")
