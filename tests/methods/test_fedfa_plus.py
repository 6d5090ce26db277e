"""FedFA+ is FedFA and FedFA-h at once, under one name."""

from __future__ import annotations

import pytest
import torch

import fedshift as fs
from fedshift import methods
from fedshift.hparam import hypers
from fedshift.methods.fedfa import FedFA
from fedshift.methods.fedfa_h import FedFAH
from fedshift.methods.fedfa_plus import FedFAPlus
from tests.methods.test_battery import start, state
from tests.methods.test_fedfa import SMALL, Channels, extra_bytes
from tests.toys import largest_difference

PROTOCOL = fs.Protocol(rounds=3, epochs=1, batch=5, lr=0.1, participation=2)


def model(method) -> dict[str, torch.Tensor]:
    return start(method, PROTOCOL).play().progress.server.model


def test_it_is_the_composition():
    options = {"p": 0.7, "statistics": "sums"}, {"align": 0.5, "tau": 0.1}
    whole = model(FedFAPlus(**options[0], **options[1]))
    for parts in (
        FedFA(**options[0]) + FedFAH(**options[1]),
        FedFAH(**options[1]) + FedFA(**options[0]),
    ):
        assert largest_difference(whole, model(parts)) < 1e-12


def test_its_halves():
    assert largest_difference(model(FedFAPlus(p=0.0)), model(FedFAH())) == 0
    assert largest_difference(model(FedFAPlus(align=0.0)), model(FedFA())) == 0
    assert largest_difference(model(FedFAPlus()), model(FedFA())) > 1e-6


def test_it_has_the_hyperparameters_of_both():
    both = hypers(FedFA) | hypers(FedFAH)
    assert hypers(FedFAPlus) == both
    assert len(both) == len(hypers(FedFA)) + len(hypers(FedFAH))


def test_bytes():
    """From the second round on 18 KiB of statistics and 16 KiB of histograms, half each way."""
    up, down = extra_bytes(FedFAPlus(), Channels, SMALL)
    assert up[0] + down[0] == (18 + 8) * 1024
    assert up[1] + down[1] == (18 + 16) * 1024


def test_everything_beyond_the_model_is_statistics():
    made = methods.make("fedfa-plus")
    names = ("fedfa-plus/fedfa_conv1.average", "fedfa-plus/histogram")
    assert {made.content(n) for n in names} == {"statistics"}


def test_the_aligned_features_are_the_augmented_ones():
    """The term is taken behind the last stage's layer: with p = 1 it differs from step to step."""
    quiet, loud = (
        start(FedFAPlus(p=p, layers="conv", variance="random", std=s)).play()
        for p, s in ((1.0, 0.0), (1.0, 2.0))
    )
    terms = [run.lines[-1]["loss"]["histogram"] for run in (quiet, loud)]
    assert terms[0] != pytest.approx(terms[1], rel=0.05)


@pytest.mark.parametrize("name", ["fedfa-plus+fedbn", "fedfa-plus+mixup"])
def test_compositions_on_both_engines(name):
    a, b = start(name).play(), start(name, engine="stacked").play()
    assert largest_difference(state(a), state(b)) < 1e-9
    assert set(a.lines[-1]["loss"]) == {"task", "histogram"}
