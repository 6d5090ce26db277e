"""Hyperparameters: declared once, checked and converted wherever a method is made."""

from __future__ import annotations

import dataclasses

import pytest

import fedshift as fs
from fedshift import methods
from fedshift.errors import BadValue, UnknownName
from fedshift.hparam import check_fields, check_names, hp, hypers


@dataclasses.dataclass(frozen=True)
class Knobs:
    share: float = hp(0.5, "a share", low=0, high=1, off=0.0)
    count: int = hp(3, "a number", low=1)
    least: float = hp(-1.0, "with an upper bound alone", high=0)
    flag: bool = hp(False, "a switch", off=False)
    kind: str = hp("a", "a word", choices=("a", "b"), quick="b")
    plain: int = 7

    def __post_init__(self) -> None:
        check_fields(self, "knobs")


def test_what_is_known():
    known = hypers(Knobs)
    assert list(known) == ["share", "count", "least", "flag", "kind"]
    assert [h.bounds() for h in known.values()] == [
        "0 to 1",
        "at least 1",
        "at most 0",
        "bool",
        "a | b",
    ]
    assert [h.has_off for h in known.values()] == [True, False, False, True, False]
    assert (known["share"].off, known["kind"].quick, known["count"].quick) == (0.0, "b", None)
    assert known["share"].kind is float and known["share"].meaning == "a share"
    assert hypers(Knobs()) == known


@pytest.mark.parametrize(
    ("name", "given", "stored"),
    [
        ("share", "0.3", 0.3),
        ("share", 1, 1.0),
        ("share", "1e-3", 1e-3),
        ("share", 0, 0.0),
        ("count", "12", 12),
        ("count", 4.0, 4),
        ("flag", "yes", True),
        ("flag", "FALSE", False),
        ("flag", 1, True),
        ("kind", "b", "b"),
    ],
)
def test_conversion(name, given, stored):
    value = getattr(Knobs(**{name: given}), name)
    assert value == stored and type(value) is type(stored)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("share", 1.5, "knobs.share is 1.5: allowed is 0 to 1"),
        ("share", -0.1, "knobs.share is -0.1: allowed is 0 to 1"),
        ("share", "nan", "knobs.share is nan: allowed is 0 to 1"),
        ("share", "inf", "knobs.share is inf: allowed is 0 to 1"),
        ("share", "much", "knobs.share is 'much': give a number (0 to 1)"),
        ("share", True, "knobs.share is True: give a number (0 to 1)"),
        ("share", None, "knobs.share is None: give a number (0 to 1)"),
        ("count", 0, "knobs.count is 0: allowed is at least 1"),
        ("count", 2.5, "knobs.count is 2.5: give a whole number (at least 1)"),
        ("count", "2.5", "knobs.count is '2.5': give a whole number (at least 1)"),
        ("least", 1, "knobs.least is 1: allowed is at most 0"),
        ("flag", "perhaps", "knobs.flag is 'perhaps': give true or false (bool)"),
        ("flag", 2, "knobs.flag is 2: give true or false (bool)"),
        ("kind", "c", "knobs.kind is 'c': choose from a | b"),
    ],
)
def test_what_is_not_allowed(name, given, message):
    with pytest.raises(BadValue) as error:
        Knobs(**{name: given})
    assert str(error.value) == message


def test_methods_check_what_they_are_given():
    assert fs.methods.FedProx(mu="0.5").mu == 0.5
    with pytest.raises(BadValue, match=r"fedprox\.mu is -1: allowed is at least 0"):
        fs.methods.FedProx(mu=-1)
    with pytest.raises(BadValue, match=r"fedavgm\.beta is 1\.1: allowed is 0 to 1"):
        fs.methods.FedAvgM(beta=1.1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        fs.methods.FedProx().mu = 1


def test_unknown_names_offer_the_nearest():
    with pytest.raises(
        UnknownName, match="unknown hyperparameter of knobs 'shar': did you mean share"
    ):
        check_names({"share": 1, "shar": 2}, hypers(Knobs), "knobs")
    with pytest.raises(
        UnknownName, match="hyperparameter of fedavgm 'nesterow': did you mean nesterov"
    ):
        methods.make("fedavgm", {"nesterow": True})
    with pytest.raises(UnknownName, match="known are mu"):
        methods.make("fedprox", {"zzz": 1})
    check_names({"kind": "zzz"}, hypers(Knobs), "knobs")


def test_settings_of_a_composition():
    made = methods.make("fedprox+fedavgm", {"mu": 1, "fedavgm.lr": 0.5, "fedprox.mu": 2})
    assert made.parts[0].mu == 2.0 and made.parts[1].lr == 0.5
    assert methods.make(made.name, methods.settings_of(made)) == made
    with pytest.raises(BadValue, match=r"'lr' is not unique: write scaffold.lr or other.lr"):
        methods.owner_of(
            "lr", [fs.methods.Scaffold, type("O", (fs.methods.Scaffold,), {"name": "other"})]
        )
    with pytest.raises(
        UnknownName, match="unknown method in a setting 'mixip': did you mean mixup"
    ):
        methods.make("fedprox+mixup", {"mixip.alpha": 1})


@pytest.mark.parametrize("name", methods.names())
def test_every_default_is_allowed(name):
    kind = methods.method_class(name)
    for hyper in hypers(kind).values():
        assert hyper.check(hyper.default, name) == hyper.default
        for value in (hyper.off, hyper.quick):
            assert value is None or hyper.check(value, name) == value
