"""Weights that a run begins with: each site takes its own copy of the file, and no other file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import save_file

import fedshift as fs
from fedshift import models
from fedshift.engines.flower import deploy
from fedshift.engines.flower.config import Deployment, SiteConfig
from fedshift.errors import BadRun, FedshiftError
from fedshift.models import ModelSpec
from tests.engines.flower.sites import InProcess, serve, sites_of
from tests.methods.test_battery import PROTOCOL, state
from tests.toys import federation, largest_difference

TOY = "tests.toys:ToyNet"


@pytest.fixture
def server(tmp_path):
    """The server's file: weights that no run draws with this seed."""
    path = tmp_path / "server" / "weights.safetensors"
    path.parent.mkdir()
    save_file(models.build(TOY, (1, 6, 6), 3, key=99).state_dict(), path)
    return path


def over_sites(file, copy, folder) -> fs.Run:
    """FedBN, whose sites keep what they begin with."""
    carrier = InProcess(sites_of(federation(), folder, pretrained=copy))
    spec = ModelSpec.of(TOY, pretrained=file)
    return serve("fedbn", folder, model=spec, carrier=carrier).play()


def test_sites_begin_with_their_own_copies(server, tmp_path):
    spec = ModelSpec.of(TOY, pretrained=server)
    options = {"dtype": "float64", "device": "cpu", "workers": 1, "warn": lambda message: None}
    loop = fs.Run(federation(), "fedbn", PROTOCOL, spec, engine="loop", **options).play()
    drawn = fs.Run(federation(), "fedbn", PROTOCOL, TOY, engine="loop", **options).play()
    copy = shutil.copy(server, tmp_path / "copy.safetensors")
    sites = over_sites(server, Path(copy), tmp_path / "sites")
    ours, theirs = ({n: t for n, t in state(r).items() if "kept/" not in n} for r in (loop, sites))
    assert largest_difference(ours, theirs) < 1e-9
    assert largest_difference(ours, {n: state(drawn)[n] for n in ours}) > 1e-3


def test_another_file_is_refused(server, tmp_path):
    other = tmp_path / "other.safetensors"
    save_file(models.build(TOY, (1, 6, 6), 3, key=98).state_dict(), other)
    with pytest.raises(BadRun, match="are not those that the run began with"):
        over_sites(server, other, tmp_path / "sites")


def test_a_site_without_a_copy_says_what_it_needs(server, tmp_path):
    with pytest.raises(BadRun, match=r"has no no\.safetensors: get it from the server, and name"):
        over_sites(server, tmp_path / "no.safetensors", tmp_path / "sites")


def test_a_deployments_file_names_them(server, tmp_path):
    path = tmp_path / "deploy.toml"
    text = f'sites = ["a"]\nmethod = "fedavg"\nmodel = "{TOY}"\naddress = "127.0.0.1:1"\n'
    path.write_text(f'{text}pretrained = "server/weights.safetensors"\n')
    told = Deployment.read(deploy.write(Deployment.read(path)))
    assert told.path(told.pretrained) == server
    server.unlink()
    with pytest.raises(FedshiftError, match=r"weights\.safetensors do not exist: check the path"):
        deploy._check(told)


def test_a_sites_file_names_its_copy(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text('name = "a"\ndata = "shifted-digits"\npretrained = "w.safetensors"\n')
    told = SiteConfig.read(path)
    assert told.path(told.pretrained) == tmp_path / "w.safetensors"
