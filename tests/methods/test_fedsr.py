"""FedSR: lengths, divergences, where draws come from and who keeps the reference.

At the start r = N(0, 1.313262^2), as softplus(1) = 1.313262; for z ~ N(0, 1) the divergence of a
dimension is log 1.313262 + 1 / (2 * 1.724657) - 1/2 = 0.0624267. Of the rows (3, 4) and (0, 0) the
mean length is 2.5, the mean square 12.5.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedshift import keys, methods
from fedshift.errors import BadModel
from fedshift.federation import Facts
from fedshift.methods.fedsr import REFERENCE, FedSR, divergence, length
from fedshift.net import Net
from fedshift.tree import under
from tests.methods.quadratic import ENGINES
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import ToyNet, largest_difference

SHORT = PROTOCOL.replace(steps=2)
DOUBLE = {"dtype": torch.float64}


def test_lengths_and_divergences():
    z = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert (length(z).item(), length(z, "squared").item()) == (2.5, 12.5)
    zero, one = torch.zeros(1, **DOUBLE), torch.ones(1, **DOUBLE)
    assert divergence(zero, one, zero, F.softplus(one)).item() == pytest.approx(0.0624267, abs=1e-7)
    m, s, mu, rho = (torch.tensor([v], **DOUBLE) for v in (0.3, 0.7, -1.0, 2.0))
    normal = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(normal(m, s), normal(mu, rho))
    assert divergence(m, s, mu, rho) == pytest.approx(expected)
    assert torch.equal(divergence(m, -s, mu, rho), divergence(m, s, mu, rho))
    still = torch.zeros(1, requires_grad=True)
    divergence(torch.zeros(1), still, torch.zeros(1), torch.ones(1)).sum().backward()
    assert torch.isfinite(still.grad).all()


def losses(method, **protocol) -> dict[str, float]:
    """The terms of client "a" in the first step."""
    options = {"rounds": 1, "steps": 1, "batch": 17, "lr": 1e-15, **protocol}
    lines = start(method, PROTOCOL.replace(**options)).play().lines
    return next(line["loss"] for line in lines if line["client"] == "a")


def test_weights_and_kinds_reach_the_loss():
    plain = losses(FedSR())
    assert set(plain) == {"task", "length", "reference"}
    double = losses(FedSR(l2r=0.02, cmi=1e-3))
    assert double["length"] == pytest.approx(2 * plain["length"])
    assert double["reference"] == pytest.approx(2 * plain["reference"])
    assert double["task"] == plain["task"]
    assert losses(FedSR(length="squared"))["length"] != pytest.approx(plain["length"], rel=1e-3)
    assert set(losses(FedSR(l2r=0.0, cmi=0.0))) == {"task"}


def test_the_terms_at_the_start():
    """With a spread of softplus(0) = log 2 and means of 0 everything is known but the draw."""
    run = start(FedSR(width=4), PROTOCOL.replace(rounds=1, steps=1, batch=17, lr=1e-15))
    for name, tensor in run.progress.server.model.items():
        if name.startswith("head.gaussian"):
            tensor.zero_()
    line = next(x["loss"] for x in run.play().lines if x["client"] == "a")
    log2, rho = torch.tensor(2.0, **DOUBLE).log(), F.softplus(torch.ones(1, **DOUBLE))
    each = divergence(torch.zeros(1, **DOUBLE), log2, torch.zeros(1, **DOUBLE), rho)
    assert line["reference"] == pytest.approx(5e-4 * 4 * each.item(), abs=1e-12)
    # 17 lengths of 4 normals times log 2: mean 1.30, three standard deviations of the mean 0.35
    assert line["length"] == pytest.approx(0.01 * 1.30, abs=0.0035)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("shared", [False, True])
def test_who_keeps_the_reference(engine, shared):
    run = start(FedSR(share_reference=shared, cmi=0.1), engine=engine).play()
    name = f"{REFERENCE}.mean"
    kept = [under("model", k).get(name) for k in run.progress.kept.values()]
    if shared:
        assert kept == [None] * 3 and run.progress.server.model[name].abs().max() > 0
    else:
        assert min((kept[0] - k).abs().max() for k in kept[1:]) > 0
        assert not run.progress.server.model[name].any(), "it never went up"
    plain = start(FedSR(cmi=0.0), engine=engine).play().lines[-1]["bytes_up"]
    assert (run.lines[-1]["bytes_up"] > plain) == shared


def test_predictions_are_of_mean_probabilities():
    run = start(FedSR(draws=3), PROTOCOL.replace(rounds=1)).play()
    net, x = Net(run.plan.model.eval(), run.progress.server.model), run.federation["a"].test.x
    found = run.method.predict(net, x, "global")
    mean, spread = net.call("head.gaussian.both", net.features(x)).chunk(2, dim=1)
    noise = keys.normal(keys.as_tensor(keys.fold(0, "fedsr")), (3, 1, 8), torch.float64)
    z = [mean + F.softplus(spread) * e for e in noise]
    p = torch.stack([net.call("head.classifier", each).softmax(dim=1) for each in z]).mean(dim=0)
    assert torch.allclose(found, p.log(), atol=1e-12)
    alone = torch.cat([run.method.predict(net, row[None], "global") for row in x])
    assert torch.allclose(found, alone, atol=1e-12), "whatever stands beside it"
    assert torch.equal(FedSR(draws=0).predict(net, x, "global"), net(x))
    assert not torch.allclose(net(x).softmax(dim=1), found.exp(), atol=1e-3)


def test_a_sample_is_drawn_anew_in_each_step():
    """The same batch twice at a rate of nothing: the task's loss differs by the draw alone."""
    one = losses(FedSR())
    two = losses(FedSR(), steps=2)
    assert two["task"] != pytest.approx(one["task"], abs=1e-6)


def test_what_it_cannot_learn_is_refused():
    bare = ToyNet()
    bare.head = nn.Identity()
    with pytest.raises(BadModel, match="'fedsr' treats the head apart"):
        FedSR().build(bare, Facts("classification", 3, (1, 6, 6), ("a",), width=8))


@pytest.mark.parametrize("other", ["mixup", "fedprox", "fedbn", "fedfa", "feddecorr", "fedbabu"])
def test_compositions_agree_on_both_engines(other):
    beside = methods.make(other) + FedSR()
    runs = [start(beside, SHORT, engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
    assert runs[0].lines[-1]["loss"]["reference"] > 0
