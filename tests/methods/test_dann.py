"""DANN: what the discriminator descends, features go against.

A discriminator that says the same of everybody has a loss of log K: log 4 = 1.386294. With lam, the
gradient of features is -lam times what it would be if they helped it.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from fedshift.methods.dann import CRITIC, DANN
from fedshift.net import Net
from tests.methods.quadratic import ENGINES
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import federation, largest_difference

ONE = PROTOCOL.replace(rounds=1, epochs=1, steps=1)
SMALL = {"hidden": 8}


class Here:
    """What the loss looks at of a client's moment."""

    def __init__(self, k, phase="model"):
        self.received, self.phase = {"k": torch.tensor(k)}, phase


def terms(method, k=1, phase="model", constant=False):
    """Loss terms and tensors of a model with a discriminator of four clients."""
    run = start(method, fed=federation((8, 8, 8, 8)))
    trained = {n for names in run.plan.trained.values() for n in names}
    own = {n: t.detach().clone().requires_grad_(n in trained) for n, t in run.plan.tensors.items()}
    if constant:
        own |= {n: torch.zeros_like(t) for n, t in own.items() if n.startswith(CRITIC)}
    net = Net(run.plan.model.eval(), own)
    client = run.federation.clients[k]
    return method.loss(net.output(client.train.x), client.train.y, Here(k, phase), net), own, client


def test_a_discriminator_that_knows_nothing():
    found, _, _ = terms(DANN(lam=0.5, **SMALL), constant=True)
    assert found["domain"].item() == pytest.approx(1.386294, abs=1e-6)
    assert found["fooling"].item() == pytest.approx(-0.5 * 1.386294, abs=1e-6)
    undecided, _, _ = terms(DANN(lam=0.5, fool="entropy", **SMALL), constant=True)
    assert undecided["fooling"].item() == pytest.approx(-0.5 * math.log(4), abs=1e-9)
    chance, _, _ = terms(DANN(fool="non-saturating", **SMALL), constant=True)
    assert chance["fooling"].item() == pytest.approx(-0.01 * math.log(0.75), abs=1e-9)


@pytest.mark.parametrize("form", ["reversal", "alternate"])
def test_features_go_against_what_the_discriminator_descends(form):
    method = DANN(lam=0.3, form=form, **SMALL)
    found, own, client = terms(method)
    if form == "alternate":
        other, _, _ = terms(method, phase=CRITIC)
        assert set(found) == {"fooling"} and set(other) == {"domain"}
    names = [n for n, t in own.items() if t.requires_grad]
    total = torch.stack(list(found.values())).sum()
    leaves = [own[n] for n in names]
    grads = dict(zip(names, torch.autograd.grad(total, leaves, allow_unused=True)))
    run = start(method, fed=federation((8, 8, 8, 8)))
    net = Net(run.plan.model.eval(), own)
    z = net.features(client.train.x)
    plain = F.cross_entropy(net.call(CRITIC, z), torch.ones(8, dtype=torch.int64))
    wanted = dict(zip(names, torch.autograd.grad(plain, leaves, allow_unused=True)))
    for name in names:
        if name.startswith("head") or wanted[name] is None:
            assert grads[name] is None
        elif not name.startswith(CRITIC):
            assert torch.allclose(grads[name], -0.3 * wanted[name], atol=1e-12)
        elif form == "reversal":
            assert torch.allclose(grads[name], wanted[name], atol=1e-12)
        else:
            assert grads[name] is None


@pytest.mark.parametrize("engine", ENGINES)
def test_turns_begin_with_the_model_in_every_round(engine):
    def after(steps):
        method = DANN(lam=0.5, form="alternate", **SMALL)
        protocol = PROTOCOL.replace(rounds=1, steps=steps)
        return start(method, protocol, engine=engine).play().progress.server.model

    def moved(a, b, critic):
        names = [n for n in a if n.startswith(CRITIC) == critic and n.endswith("weight")]
        return max((a[n] - b[n]).abs().max().item() for n in names) > 1e-9

    begin = start(DANN(lam=0.5, form="alternate", **SMALL)).progress.server.model
    one, two, three = after(1), after(2), after(3)
    assert [moved(begin, one, critic) for critic in (True, False)] == [False, True]
    assert [moved(one, two, critic) for critic in (True, False)] == [True, False]
    assert [moved(two, three, critic) for critic in (True, False)] == [False, True]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_client_has_a_label_of_its_own(engine):
    """With the bias of client b's answer alone raised, b's loss is low and the others' are high."""
    run = start(DANN(lam=0.1, **SMALL), ONE.replace(lr=1e-12), engine=engine)
    model = run.progress.server.model
    bias = next(n for n in reversed(model) if n.startswith(CRITIC) and n.endswith("bias"))
    model[bias] += torch.tensor([0.0, 20.0, 0.0]).double()
    losses = {line["client"]: line["loss"] for line in run.play().lines[:3]}
    assert losses["b"]["domain"] < 1e-6 < 10 < losses["a"]["domain"]
    assert losses["c"]["fooling"] == pytest.approx(-0.1 * losses["c"]["domain"])


@pytest.mark.parametrize(
    "settings", [{"form": "alternate"}, {"fool": "entropy"}, {"fool": "non-saturating"}]
)
def test_switches_agree_on_both_engines(settings):
    method = DANN(lam=0.5, **SMALL, **settings)
    protocol = PROTOCOL.replace(participation=2, momentum=0.5)
    runs = [start(method, protocol, engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
    usual = start(DANN(lam=0.5, **SMALL), protocol).play()
    assert largest_difference(state(usual), state(runs[0])) > 1e-6


def test_alternating_with_no_weight_still_takes_half_of_the_steps():
    one = start(DANN(lam=0.0, form="alternate", **SMALL), ONE.replace(steps=2)).play()
    two = start("fedavg", ONE).play()
    weights = [n for n in two.progress.server.model if n.endswith("weight")]
    for name in weights:
        found = one.progress.server.model[name]
        assert torch.allclose(found, two.progress.server.model[name], atol=1e-12)


@pytest.mark.parametrize("other", ["mixup", "fedbn", "fedprox"])
def test_with_methods_of_the_clients(other):
    runs = [start(f"dann+{other}", engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
    assert "fooling" in runs[0].lines[-1]["loss"]


def test_the_discriminator_learns_whose_features_they_are():
    """Below the log 3 of knowing nothing, as long as nobody fools it."""
    protocol = PROTOCOL.replace(rounds=15, lr=0.3, steps=2)
    run = start(DANN(lam=1e-9, **SMALL), protocol, fed=federation((12, 12, 12))).play()
    first, last = (run.lines[at]["loss"]["domain"] for at in (3, -1))
    assert last < first
