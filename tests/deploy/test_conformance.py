"""Loop, simulation and deployment with TLS and keys give equal final weights."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from fedshift import files
from fedshift.engines.flower import certs, deploy, local, simulation
from fedshift.engines.flower.simulation import Simulation
from tests.deploy import cases
from tests.deploy.cases import CASES
from tests.deploy.field import NAMES, PATH, Field, settled
from tests.toys import federation, largest_difference


@pytest.fixture(scope="module")
def deployed(field: Field):
    """One deployment that plays all cases; a stranger and a plain node try to get in meanwhile."""
    os.environ["PYTHONPATH"] = PATH  # its processes find the cases
    certs.pair(field.certs / "stranger.key")
    for name in NAMES:
        field.node(name)
    stranger = field.site("stranger", name="a", key=str(field.certs / "stranger.key"))
    plain = field.site("plain", name="a", ca="", key="")
    said: list[str] = []
    path = field.deployment(protocol={"rounds": 2})

    def say(text: str) -> None:
        said.append(text)
        if text.startswith("the server listens"):
            field.start("site", "run", stranger, "--once", log="stranger.log")
            field.start("site", "run", plain, "--once", log="plain.log")

    status = deploy.run(path, say, module="tests.deploy.turns")
    assert status["state"] == "ended"
    return field, said


@pytest.fixture(scope="module")
def simulator(tmp_path_factory):
    """A simulator with the toy federation's sites, which takes one run after another."""
    one = Simulation(local.prepare(federation(), tmp_path_factory.mktemp("simulated")))
    yield one
    one.close()


@pytest.mark.parametrize("name", CASES)
def test_the_simulator_equals_the_loop(name, request, monkeypatch):
    if name != CASES[0]:  # starting one takes ten seconds: the first case does it for itself
        one = request.getfixturevalue("simulator")
        there = SimpleNamespace(ask=one.ask, close=lambda: None)
        monkeypatch.setattr(simulation, "Simulation", lambda sites, scratch: there)
    one, other = cases.loop(name), cases.run(name, engine="flower")
    assert other.engine_name == "flower"
    assert largest_difference(one.progress.server.model, other.progress.server.model) < 1e-9
    means = [[i["mean"] for i in r.lines if i["client"] is None] for r in (one, other)]
    assert means[0] == pytest.approx(means[1])


@pytest.mark.parametrize("name", CASES)
def test_a_deployment_equals_the_loop(name, deployed):
    field, _ = deployed
    model, _ = files.load_tensors(
        field.folder / "deploy" / "cases" / name / "run" / "model.safetensors"
    )
    assert largest_difference(cases.loop(name).progress.server.model, model) < 1e-9


def test_everybody_took_part_in_every_round(deployed):
    field, _ = deployed
    rounds = settled(field.folder / "deploy" / "status.json")["rounds"]
    assert len(rounds) == sum(
        stage.rounds for name in CASES for stage in cases.make(name).stages(cases.PROTOCOL)
    )
    assert all(r["took_part"] == list(NAMES) and r["left_out"] == {} for r in rounds)


def test_a_key_that_is_not_registered_is_refused(deployed):
    field, _ = deployed
    assert "the server refused its key" in field.log("stranger.log")


def test_a_node_without_tls_is_refused(deployed):
    field, _ = deployed
    assert "error: site 'a': it cannot connect to the server" in field.log("plain.log")
