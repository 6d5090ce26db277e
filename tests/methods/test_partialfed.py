"""PartialFed: which layers come from the server, and the methods that it is at its ends."""

from __future__ import annotations

import pytest
from torch import nn

from fedshift import methods
from fedshift.errors import BadModel, UnknownName
from fedshift.methods.partialfed import PartialFed
from fedshift.tree import under
from tests.methods.quadratic import ENGINES
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import ToyNet, largest_difference

NORM = {f"conv.1.{n}" for n in ("weight", "bias", "running_mean", "running_var")}
NORM |= {"conv.1.num_batches_tracked"}
HEAD = {"head.weight", "head.bias"}


def own(run) -> set[str]:
    """What a client does not load."""
    return set(run.plan.names("kept"))


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        ("but-norms-and-head", NORM | HEAD),
        ("but-norms", NORM),
        ("all", set()),
        ("conv", {"hidden.2.weight", "hidden.2.bias"} | HEAD),
        ("conv.0, head", {"hidden.2.weight", "hidden.2.bias"} | NORM),
    ],
)
def test_what_clients_load(load, expected):
    run = start(PartialFed(load=load))
    assert own(run) == expected
    run.play()
    for kept in run.progress.kept.values():
        assert set(under("model", kept)) == expected
    line, size = (
        run.lines[-1],
        sum(t.nbytes for n, t in run.progress.server.model.items() if n not in expected),
    )
    assert line["bytes_up"] == line["bytes_down"] == 3 * size


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("load", "other"), [("all", "fedavg"), ("but-norms", "fedbn"), ("none", "local")]
)
def test_at_its_ends_it_is_another_method(load, other, engine):
    """Client models are the same, also when not everybody takes part."""
    protocol = PROTOCOL.replace(rounds=3, participation=2)
    mine = start(PartialFed(load=load), protocol, engine=engine).play()
    theirs = start(methods.make(other), protocol, engine=engine).play()
    assert largest_difference(state(mine), state(theirs)) < 1e-14


def test_a_round_begins_with_the_loaded_and_the_own():
    """One round of nothing (a rate of 0) leaves own layers, and loads the mean of the others."""
    method, own_layer, loaded = PartialFed(load="hidden,head"), "conv.0.weight", "head.weight"
    one = start(method, PROTOCOL.replace(rounds=1)).play()
    two = start(method, PROTOCOL.replace(rounds=2, schedule="exponential", decay=0.0)).play()
    for client in "abc":
        before, after = (r.progress.kept[client][f"model/{own_layer}"] for r in (one, two))
        assert (before - after).abs().max() == 0
    apart = (
        one.progress.kept["a"][f"model/{own_layer}"] - one.progress.kept["b"][f"model/{own_layer}"]
    )
    assert apart.abs().max() > 1e-3
    models = [r.progress.server.model[loaded] for r in (one, two)]
    assert (models[0] - models[1]).abs().max() < 1e-15


def test_layers_that_are_not_there_are_refused():
    with pytest.raises(UnknownName, match=r"'hiden'.*hidden"):
        start(PartialFed(load="conv,hiden"))
    bare = ToyNet()
    bare.head = nn.Identity()
    with pytest.raises(BadModel, match="'partialfed' treats the head apart"):
        PartialFed().build(bare, None)


@pytest.mark.parametrize("other", ["mixup", "fedprox", "scaffold", "moon", "fedfa", "pfedavg"])
def test_compositions_agree_on_both_engines(other):
    beside = methods.make(other) + PartialFed()
    runs = [start(beside, engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
    assert own(runs[0]) >= NORM | {n for n in runs[0].plan.tensors if n.startswith("head.")}
