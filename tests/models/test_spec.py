"""Specs: what a user may give, what another process can rebuild, and errors in one line."""

import json

import pytest
import torch
from torch import nn

from fedshift import models
from fedshift.errors import BadModel
from fedshift.models import ModelSpec
from fedshift.models.source import load

SHAPE = (1, 16, 16)
FILE = """
from torch import nn
from neighbour import WIDTH

class Net(nn.Module):
    def __init__(self, in_channels, num_classes=1000, width=WIDTH):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3)
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x):
        return self.fc(self.conv1(x).mean((2, 3)))

def by_count(n): return nn.Sequential(nn.Flatten(), nn.Linear(256, n))
def by_place(s, c): return nn.Sequential(nn.Flatten(), nn.Linear(s[1] * s[2], c))
def fixed(): return nn.Sequential(nn.Flatten(), nn.Linear(256, 3))
def broken(classes): raise RuntimeError("no such luck\\nat all")
def three(a, b, c): ...
def nothing(classes): return None
"""


@pytest.fixture
def nets(tmp_path):
    (tmp_path / "neighbour.py").write_text("WIDTH = 6\n")
    path = tmp_path / "nets.py"
    path.write_text(FILE)
    return path


def test_a_file_is_rebuilt_from_plain_values(nets):
    spec = ModelSpec.of(f"{nets}:Net", stages=("conv1",), head="fc", kwargs={"width": 5})
    again = ModelSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    a, b = spec.build(SHAPE, 3, key=4), again.build(SHAPE, 3, key=4)
    assert a.head.weight.shape == (3, 5)
    assert all(torch.equal(t, b.state_dict()[n]) for n, t in a.state_dict().items())


@pytest.mark.parametrize("factory", ["by_count", "by_place", "fixed"])
def test_called_with_what_it_takes(nets, factory):
    model = models.build(f"{nets}:{factory}", SHAPE, 3, key=0, head="1")
    assert model(torch.zeros(2, *SHAPE)).shape == (2, 3)


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("Nett", "has no 'Nett': did you mean Net"),
        ("broken", "RuntimeError: no such luck; give what it needs a default"),
        ("three", "needs 'a', which is not known here"),
        ("nothing", "made NoneType, not a torch.nn.Module"),
        ("Net", r"has no features\(x\): name its stages and head"),
        ("WIDTH", "is int, not a class or function"),
    ],
)
def test_errors_are_one_line(nets, attribute, message):
    with pytest.raises(BadModel, match=message) as caught:
        models.build(f"{nets}:{attribute}", SHAPE, 3, key=0)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there_or_break(nets):
    with pytest.raises(BadModel, match=r"does not exist: did you mean nets.py"):
        load(f"{nets.with_name('net.py')}:Net")
    with pytest.raises(BadModel, match=r"names no class: add it"):
        models.build(str(nets), SHAPE, 3, key=0)
    nets.write_text("import neighbor_misspelt")
    with pytest.raises(BadModel, match="fails when imported: ModuleNotFoundError"):
        load(f"{nets}:Net")
    with pytest.raises(BadModel, match=r"'no.such.module' cannot be imported"):
        load("no.such.module:Net")
    with pytest.raises(BadModel, match="takes no 'depth'"):
        nets.write_text(FILE)
        models.build(f"{nets}:Net", SHAPE, 3, key=0, kwargs={"depth": 2})


class Own(models.Staged):
    """An importable class that keeps to the contract by itself."""

    def __init__(self, classes):
        super().__init__()
        self.stages = ("flat",)
        self.flat = nn.Flatten()
        self.head = nn.Linear(256, classes)


def test_classes_functions_and_objects():
    importable = ModelSpec.of(Own)
    assert importable.to_dict()["name"] == f"{__name__}:Own"
    assert type(importable.build(SHAPE, 3, key=0)) is Own
    own = Own(3)
    for local in (own, lambda c: Own(c)):
        spec = ModelSpec.of(local)
        assert not spec.rebuildable
        with pytest.raises(BadModel, match="lives in this process alone"):
            spec.to_dict()
    built = models.build(own, SHAPE, 3, key=0)  # an object keeps its weights, and is copied
    assert torch.equal(built.head.weight, own.head.weight)
    assert built.head.weight is not own.head.weight


def test_stages_without_a_head():
    assert models.build(Own, SHAPE, 3, key=0, stages=("flat",)).stages == ("flat",)
    with pytest.raises(BadModel, match="has stages but no head"):
        models.build(nn.Sequential(nn.Flatten(), nn.Linear(256, 3)), SHAPE, 3, key=0, stages=("0",))
    with pytest.raises(BadModel, match="unknown entries klass"):
        ModelSpec.from_dict({"name": "mlp", "klass": 3})


def test_lazy_layers_get_their_sizes_and_weights_from_the_key():
    def lazy(classes):
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(7), nn.LazyLinear(classes))

    a, b = (models.build(lazy, SHAPE, 3, key=1, head="2") for _ in range(2))
    assert a.head.weight.shape == (3, 7) and torch.equal(a.head.weight, b.head.weight)
    assert a.training
    with pytest.raises(BadModel, match=r"forward\(x\) fails on an input of shape \(2, 1, 16, 16\)"):
        models.build(lambda c: nn.LazyConv3d(c, 99), SHAPE, 3, key=1, head="0")
