"""What papers say of their traffic is what is seen when the method plays at their sizes."""

from __future__ import annotations

import math

import pytest

from fedshift import methods
from fedshift.wire import observe
from tests.wire.sizes import Channels, Wide, federation

KIB = 1024
ALEXNET = (64, 192, 384, 256, 256)


def numbers(items, start: str, kind: str = "parameters") -> int:
    """How many numbers of a kind items of a name hold, each tensor once."""
    found = {i.name: i.shape for i in items if i.name.startswith(start) and i.kind == kind}
    return sum(math.prod(shape) for shape in found.values())


@pytest.mark.parametrize(
    ("name", "first", "later"), [("fedfa", 18, 18), ("fedfa-h", 8, 16), ("fedfa-plus", 26, 34)]
)
def test_statistics_and_histograms_on_alexnets_channels(name, first, later):
    """4 x 1152 floats of statistics, 2 x 8 x 256 of histograms, which go down from round 2 on."""
    assert sum(ALEXNET) == 1152
    wire = observe(methods.make(name), federation(10), Channels(ALEXNET, 10))
    beyond = [i for i in wire.items if i.way != "kept" and not i.of_model]
    assert {i.kind for i in beyond} == {"statistics"}
    assert sum(i.bytes for i in beyond if 1 in i.rounds) == first * KIB
    assert sum(wire.bytes(way, of_model=False) for way in ("up", "down")) == later * KIB
    for item in beyond:
        histogram = item.name.endswith("histogram")
        assert item.rounds == ((2,) if histogram and item.way == "down" else (1, 2))
        assert item.use == (
            "alike" if item.way == "down" else "mean" if histogram else "individual"
        )


@pytest.mark.parametrize(
    ("classes", "generator", "rtnet"),
    [(7, 399_872, 266_240), (10, 401_408, 267_008), (65, 429_568, 281_088)],
)
def test_the_networks_of_fraug(classes, generator, rtnet):
    """512 features and 256 of noise; of G, batch norm's 2,048 parameters stay at the client."""
    wire = observe(methods.make("fraug"), federation(classes), Wide(512, classes))
    for way in ("down", "up"):
        assert numbers(wire.select(way), "fraug_generator") == generator - 2048
        assert not [i for i in wire.select(way) if i.name.startswith("fraug_rtnet")]
    assert numbers(wire.items, "fraug_generator") == generator
    assert numbers(wire.select("kept"), "fraug_rtnet") == rtnet
    shared = methods.make("fraug", {"local_generator_norm": False})
    wire = observe(shared, federation(classes), Wide(512, classes))
    assert numbers(wire.select("up"), "fraug_generator") == generator


@pytest.mark.parametrize(("classes", "size"), [(65, 33_345), (7, 3_591)])
def test_the_heads_of_fedlsi(classes, size):
    wire = observe(methods.make("fedlsi"), federation(classes), Wide(512, classes))
    sent = wire.select("up", "warm-up")
    assert numbers(sent, "fedlsi/head/") == size and {i.use for i in sent} == {"individual"}
    assert numbers(sent, "fedlsi/head/", "statistics") == 2 * 512
    assert {i.rounds for i in sent} == {(1,)}


def test_the_translator_of_fedlsi():
    """512 features, three clients, 1024 hidden units: sent once, to everybody alike."""
    wire = observe(methods.make("fedlsi"), federation(7), Wide(512, 7))
    found = wire.select("down", "translator")
    assert numbers(found, "fedlsi/translator/") == 2_109_952
    assert {i.use for i in found if i.name.startswith("fedlsi/translator/")} == {"alike"}
    assert not [i for i in wire.select("down", "train") if "translator" in i.name]
    four = observe(methods.make("fedlsi"), federation(7, clients=4), Wide(512, 7))
    assert numbers(four.select("down"), "fedlsi/translator/") == 2_109_952 + 2 * 1024


@pytest.mark.parametrize(("classes", "size"), [(10, 27_968), (26, 32_064)])
def test_the_generators_of_fedgenp(classes, size):
    """32 features, 32 of noise, 256 hidden units: each client's own, every round."""
    wire = observe(methods.make("fedgenp"), federation(classes), Wide(32, classes))
    found = [i for i in wire.select("down") if i.name.startswith("fedgenp/generator/")]
    assert numbers(found, "") == size and numbers(found, "", "statistics") == 512
    assert {i.use for i in found} == {"own"} and {i.rounds for i in found} == {(1, 2)}
