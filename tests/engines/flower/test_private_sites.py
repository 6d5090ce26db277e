"""Clipping and noise over sites: the numbers of the loop, and what a deployment's file says."""

from __future__ import annotations

import pytest

from fedshift.engines.flower.config import Deployment
from fedshift.errors import FedshiftError
from fedshift.privacy import Privacy
from fedshift.run import Run
from tests.engines.flower.sites import serve
from tests.methods.test_battery import PROTOCOL, make, state
from tests.toys import ToyNet, federation, largest_difference


@pytest.mark.parametrize("where", ["central", "local"])
@pytest.mark.parametrize("name", ["fedbn", "fedbn+scaffold"])
def test_sites_equal_the_loop(name, where, tmp_path):
    private = Privacy(clip=0.2, noise=0.3, where=where, clip_extras=1.0)
    loop = Run(
        federation(),
        make(name),
        PROTOCOL,
        ToyNet,
        dtype="float64",
        device="cpu",
        engine="loop",
        privacy=private,
        warn=lambda message: None,
    ).play()
    sites = serve(name, tmp_path, privacy=private).play()
    server = [n for n in state(sites) if not n.startswith("kept/")]
    found, wanted = state(sites), state(loop)
    assert {n for n in wanted if not n.startswith("kept/")} == set(server)
    assert largest_difference(*({n: t[n] for n in server} for t in (found, wanted))) < 1e-9
    assert sites.spent == loop.spent and sites.spent["epsilon"] > 0


def test_sites_that_add_the_noise_tell_no_losses(tmp_path):
    run = serve("fedbn", tmp_path, privacy=Privacy(where="local")).play()
    assert run.lines[-1]["loss"] is None


DEPLOY = 'sites = ["a", "b"]\nmethod = "fedavg"\nmodel = "mlp"\n'


def test_a_deployment_takes_its_noise_from_the_system(tmp_path):
    path = tmp_path / "deploy.toml"
    path.write_text(DEPLOY + "[privacy]\nnoise = 2.0\n")
    assert Deployment.read(path).full_privacy() == Privacy(noise=2.0, source="system")
    path.write_text(DEPLOY)
    assert Deployment.read(path).full_privacy() is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("privacy = 3\n", "write .privacy. and below it"),
        ("[privacy]\nnois = 1\n", "did you mean noise"),
        ("[privacy]\nclip = 0\n", "privacy.clip is 0"),
    ],
)
def test_bad_privacy_is_refused_before_anything_starts(tmp_path, text, words):
    path = tmp_path / "deploy.toml"
    path.write_text(DEPLOY + text)
    with pytest.raises(FedshiftError, match=words):
        Deployment.read(path)
