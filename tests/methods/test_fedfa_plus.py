"""FedFA+ is FedFA and FedFA-h at once, under one name."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import fedshift as fs
from fedshift import methods
from fedshift.federation import Samples
from fedshift.hparam import hypers
from fedshift.method import State, Uploads
from fedshift.methods.fedfa import FedFA
from fedshift.methods.fedfa_h import FedFAH
from fedshift.methods.fedfa_plus import FedFAPlus
from fedshift.net import Net
from fedshift.parts.histogram import histogram, limits
from tests.methods.test_battery import start, state
from tests.methods.test_fedfa import SMALL, Channels, extra_bytes
from tests.methods.test_fedfa_h import features
from tests.toys import federation, largest_difference

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


def test_histograms_that_go_up_are_of_features_that_nobody_moved():
    """One client: the global model is its own, and with p = 1 a layer would act on every batch."""
    fed = federation((17,))
    run = start(FedFAPlus(p=1.0), PROTOCOL.replace(rounds=1, participation=1.0), fed).play()
    maps = features(run)
    own = limits(maps)
    kept = run.progress.kept["a"]
    assert torch.allclose(kept["fedfa-plus/low"], own[0])
    assert torch.allclose(kept["fedfa-plus/high"], own[1])
    found = run.progress.server.methods["fedfa-plus"].tensors["histogram"]
    assert torch.allclose(found, histogram(maps, own, 8, 0.01), atol=1e-10)


def test_a_stage_without_training_leaves_the_server_as_it_was():
    """Reports of such a stage come without models: no averages have moved, no features changed."""
    one = torch.ones(1)
    extras = {"fedfa_conv.average": torch.rand(1, 2, 4), "histogram": torch.rand(1, 4, 8)}
    combined = {"histogram": extras["histogram"][0]}
    uploads = Uploads(("a",), one, one, {}, extras, combined, 1, 0, "collect")
    new, server = {"fedfa_conv.variance": torch.ones(2, 4)}, State()
    assert FedFAPlus().after(new, uploads, server, Net(nn.Identity()), 0) == (new, server)


def test_hard_clients_on_both_engines():
    """One class, two samples, and a client whose last batches are topped up: all stay finite."""
    whole = federation((17, 9, 12))
    train = whole["a"].train
    a = dataclasses.replace(whole["a"], train=Samples(train.x[train.y == 0], train.y[train.y == 0]))
    first = whole["b"].train
    b = dataclasses.replace(whole["b"], train=Samples(first.x[:2], first.y[:2]))
    fed = fs.Federation("hard", (a, b, whole["c"]), whole.classes, whole.pipeline)
    runs = [
        start(FedFAPlus(tau=0.1), PROTOCOL.replace(participation=1.0), fed, e).play()
        for e in ("loop", "stacked")
    ]
    assert all(t.isfinite().all() for t in state(runs[0]).values())
    assert largest_difference(state(runs[0]), state(runs[1])) < 1e-9


@pytest.mark.parametrize("name", ["fedfa-plus+fedbn", "fedfa-plus+mixup"])
def test_compositions_on_both_engines(name):
    a, b = start(name).play(), start(name, engine="stacked").play()
    assert largest_difference(state(a), state(b)) < 1e-9
    assert set(a.lines[-1]["loss"]) == {"task", "histogram"}
