"""HarmoFL: whose amplitudes images have, when; and that its steps are FedSAM's."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from fedshift.errors import BadModel
from fedshift.methods.fedsam import FedSAM
from fedshift.methods.harmofl import NOTHING, OWN, SHARED, HarmoFL, Harmonised
from fedshift.parts.spectrum import amplitude, with_amplitude, with_mean
from tests.methods.quadratic import ENGINES
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import federation, largest_difference

LAYER = "harmofl_amplitude"


@dataclass(frozen=True)
class Watched(HarmoFL):
    """HarmoFL, and what came up in each round."""

    seen: ClassVar[list] = []

    def after(self, new, uploads, server, net, key):
        sent = uploads.model[f"{LAYER}.amplitude"]
        self.seen.append(dict(zip(uploads.clients, sent, strict=True)))
        return super().after(new, uploads, server, net, key)


def watch(protocol=PROTOCOL, fed=None, **settings):
    Watched.seen.clear()
    run = start(Watched(**settings), protocol, fed).play()
    return run, list(Watched.seen)


def images(seed: int) -> torch.Tensor:
    return torch.rand(5, 1, 6, 6, generator=torch.Generator().manual_seed(seed)).double()


# -- the layer ---------------------------------------------------------------------------------


def test_the_average_of_a_first_round():
    """The first batch sets it, then A <- 0.7 A + 0.3 batch; each batch has what it left."""
    layer = Harmonised((1, 6, 6), momentum=0.3, whole=True).double()
    a, b, c = images(0), images(1), images(2)
    assert torch.equal(layer.eval()(a), a) and layer.known == NOTHING, "nothing is known yet"
    layer.train()
    first = amplitude(a).mean(0)
    assert torch.allclose(layer(a), with_amplitude(a, first)) and layer.known == OWN
    second = 0.7 * first + 0.3 * amplitude(b).mean(0)
    assert torch.allclose(layer(b), with_amplitude(b, second))
    assert torch.allclose(layer.eval()(c), with_amplitude(c, second)), "and in evaluation"
    assert torch.allclose(layer.amplitude, second)


def test_what_the_federation_gave_stays():
    layer = Harmonised((1, 6, 6), momentum=0.3, whole=True).double()
    layer.amplitude.copy_(amplitude(images(3)).mean(0)), layer.known.fill_(SHARED)
    before = layer.amplitude.clone()
    found = layer(images(0))
    assert torch.equal(layer.amplitude, before) and layer.known == SHARED
    assert torch.allclose(found, with_amplitude(images(0), before))


def test_the_mean_intensity_alone():
    layer = Harmonised((1, 6, 6), momentum=0.0, whole=False).double()
    layer(images(0))
    first = amplitude(images(0)).mean(0)
    assert torch.allclose(layer(images(1)), with_mean(images(1), first)), "momentum 0: it stays"


# -- runs --------------------------------------------------------------------------------------


def test_the_first_round_gives_everybodys_mean_for_ever():
    """Each step sees all data of its client, so that its average is over them whatever momentum."""
    fed = federation((12, 6))
    run, seen = watch(PROTOCOL.replace(rounds=3, batch=12, weights="samples"), fed)
    for client in "ab":
        own = amplitude(fed[client].train.x).mean(0)
        assert torch.allclose(seen[0][client], own)
    mean = (seen[0]["a"] + seen[0]["b"]) / 2
    found = run.progress.server.model[f"{LAYER}.amplitude"]
    assert torch.allclose(found, mean, rtol=0, atol=1e-12), "unweighted"
    for later in seen[1:]:
        assert torch.equal(later["a"], found) and torch.equal(later["b"], found)
    assert run.progress.server.model[f"{LAYER}.known"] == SHARED


def test_who_was_absent_takes_what_the_others_gave():
    run, seen = watch(PROTOCOL.replace(rounds=4, participation=2))
    first = torch.stack(list(seen[0].values())).mean(0)
    assert set.union(*map(set, seen)) == set("abc") != set(seen[0])
    for later in seen[1:]:
        for sent in later.values():
            assert torch.equal(sent, run.progress.server.model[f"{LAYER}.amplitude"])
    assert torch.allclose(first, run.progress.server.model[f"{LAYER}.amplitude"])


@pytest.mark.parametrize("how", ["full", "dc"])
def test_predictions_see_harmonised_images(how):
    run, _ = watch(amplitude=how)
    model, wanted = run.plan.model.eval(), run.progress.server.model[f"{LAYER}.amplitude"]
    model.load_state_dict(run.progress.server.model)
    x = images(7)
    same = (with_amplitude if how == "full" else with_mean)(images(7), wanted)
    assert not torch.allclose(same, x)
    with torch.no_grad():
        assert torch.allclose(model(x), model(same)), "what is harmonised already stays"
        assert not torch.allclose(model(x), model(x.flip(0)))
        assert (model(x) - model(x + 3.0)).abs().max() < 1e-9, "a brighter picture is the same"


def test_without_amplitudes_it_is_fedsam():
    short = PROTOCOL.replace(steps=2)
    a, b = start(HarmoFL(alpha=0.3, amplitude="none"), short), start(FedSAM(rho=0.3), short)
    assert (
        largest_difference(a.play().progress.server.model, b.play().progress.server.model) < 1e-12
    )


@pytest.mark.parametrize("how", ["full", "dc"])
def test_engines_agree_in_both_forms(how):
    runs = [
        start(HarmoFL(amplitude=how), PROTOCOL.replace(steps=2), engine=e).play() for e in ENGINES
    ]
    assert largest_difference(*map(state, runs)) < 1e-9


def test_what_is_no_image_is_refused():
    with pytest.raises(BadModel, match=r"harmonises images.*shape \(5,\): set harmofl\.amplitude"):
        HarmoFL().build(torch.nn.Identity(), SimpleNamespace(shape=(5,)))
