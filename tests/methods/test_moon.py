"""MOON's contrast on unit vectors, and whose model it pushes off.

With one previous model and cosines c_g and c_p the term is log(1 + e^{(c_p - c_g) / tau}): log 2 =
0.693147 where all three are equal, and log(1 + e^-2) = 0.126928 where z = z_g and z_p is
orthogonal, at tau = 0.5. Two equal previous models make it log(1 + 2 e^{(c_p - c_g) / tau}).
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedshift as fs
from fedshift import methods
from fedshift.errors import BadModel
from fedshift.federation import Facts
from fedshift.methods.moon import Moon, contrast
from fedshift.net import Net
from fedshift.tree import under
from tests.methods.quadratic import ENGINES
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import ToyNet, federation, largest_difference

X, Y = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])
SHORT = PROTOCOL.replace(steps=2)


def test_contrast_on_known_vectors():
    assert contrast(X, X, [X], 0.5).item() == pytest.approx(math.log(2), abs=1e-6)
    assert contrast(X, X, [Y], 0.5).item() == pytest.approx(0.126928, abs=1e-6)
    assert contrast(X, Y, [X], 0.5).item() == pytest.approx(2.126928, abs=1e-6)
    assert contrast(X, X, [Y, Y], 0.5).item() == pytest.approx(math.log(1 + 2 * math.exp(-2)))
    one = torch.tensor([True, False])
    assert contrast(X, X, [Y, X], 0.5, one).item() == pytest.approx(0.126928, abs=1e-6)
    assert torch.isfinite(contrast(X, Y, [X], 1e-3)).all(), "e^1000 has no place in float32"


def plain(method, rounds: int, engine: str = "loop", sizes=(12, 12, 12), **protocol) -> fs.Run:
    """Without dropout and norm, each step on a client's whole data."""
    return fs.Run(
        federation(sizes),
        method,
        PROTOCOL.replace(rounds=rounds, **{"steps": 1, "batch": 12, **protocol}),
        lambda: ToyNet(dropout=0.0, norm=False),
        dtype="float64",
        device="cpu",
        engine=engine,
        workers=1,
        warn=lambda message: None,
    ).play()


def previous(run: fs.Run, client: str, place: int = 0) -> dict[str, torch.Tensor]:
    return under(f"moon/previous/{place}", run.progress.kept[client])


def terms(run: fs.Run, round: int) -> dict[str, float]:
    return {
        line["client"]: line["loss"]["moon"]
        for line in run.lines
        if line["client"] and line["round"] == round and line["loss"]
    }


@pytest.mark.parametrize("teacher", ["eval", "train"])
def test_in_the_first_step_of_all_the_three_models_are_one(teacher):
    found = terms(plain(Moon(mu=2.0, teacher=teacher), 1), 1)
    assert list(found.values()) == pytest.approx([2 * math.log(2)] * 3, abs=1e-12)


@pytest.mark.parametrize("head", ["projector", "none"])
def test_the_second_round_pushes_off_the_clients_own_model(head):
    """Its first step starts at the received model, so z = z_g and c_g = 1."""
    method = Moon(head=head, out=16, mu=0.5)
    one, two = plain(method, 1, lr=0.5), plain(method, 2, lr=0.5)
    model, now = one.plan.model, one.progress.server.model
    for client in one.federation.clients:
        z, z_p = (
            Net(model, dict(t)).features(client.train.x) for t in (now, previous(one, client.name))
        )
        if head == "projector":
            z = Net(model, dict(now)).call("head.projector", z)
            z_p = Net(model, previous(one, client.name)).call("head.projector", z_p)
        term = F.softplus((torch.cosine_similarity(z, z_p) - 1) / 0.5).mean()
        assert terms(two, 2)[client.name] == pytest.approx(0.5 * term.item(), abs=1e-12)
        assert abs(term.item() - math.log(2)) > 1e-6, "choose a larger rate"


def test_what_is_kept_is_the_model_that_went_up():
    run = plain(Moon(), 1)
    for name, mean in run.progress.server.model.items():
        each = [previous(run, client)[name] for client in "abc"]
        assert torch.allclose(sum(each) / 3, mean, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_who_was_away_knows_no_previous_model(engine):
    """2 of 3 take part; who comes first in a later round pushes off what it receives then."""
    runs = [plain(Moon(), r, engine, participation=2) for r in (1, 2, 3)]
    known = [{c: int(k["moon/known"]) for c, k in r.progress.kept.items()} for r in runs]
    assert sorted(known[0].values()) == [0, 1, 1]
    late = next(c for c, n in known[0].items() if n == 0)
    first = next(r for r in (1, 2) if known[r][late] == 1)
    assert terms(runs[first], first + 1)[late] == pytest.approx(math.log(2), abs=1e-12)


def test_older_models_move_on():
    one, two = (plain(Moon(buffer=2), r, lr=0.3) for r in (1, 2))
    for client in "abc":
        assert largest_difference(previous(two, client, 1), previous(one, client, 0)) == 0
        assert largest_difference(previous(two, client, 0), previous(one, client, 0)) > 1e-6
    runs = [
        start(Moon(buffer=2, out=8), PROTOCOL.replace(rounds=3), engine=e).play() for e in ENGINES
    ]
    assert largest_difference(*map(state, runs)) < 1e-9


def test_the_projection_stands_between_features_and_classifier():
    run = start(Moon(hidden=5, out=7), PROTOCOL.replace(rounds=1, steps=1))
    shapes = {n: tuple(t.shape) for n, t in run.plan.tensors.items() if n.startswith("head.")}
    assert shapes["head.projector.0.weight"] == (5, 8)
    assert shapes["head.projector.2.weight"] == (7, 5)
    assert shapes["head.classifier.weight"] == (3, 7)
    assert run.plan.used >= set(shapes), "predictions pass through it"


def test_what_it_cannot_learn_is_refused():
    bare = ToyNet()
    bare.head = nn.Identity()
    with pytest.raises(BadModel, match=r"'moon'.*no head"):
        Moon().build(bare, Facts("classification", 3, (1, 6, 6), ("a",), width=8))


@pytest.mark.parametrize("other", ["mixup", "fedbn", "fedprox", "fedbr", "scaffold", "pfedavg"])
def test_compositions_agree_on_both_engines(other):
    options = {"moon.out": 8, **({"fedbr.size": 6} if other == "fedbr" else {})}
    runs = [start(methods.make(f"{other}+moon", options), SHORT, engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
    assert all("moon" in line["loss"] for line in runs[0].lines if line["loss"])
