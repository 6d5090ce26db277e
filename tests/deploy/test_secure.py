"""Secure aggregation over processes: a site that is killed after it shared its keys is left out."""

from __future__ import annotations

import os

import pytest

from fedshift import files
from fedshift.engines.flower import local
from fedshift.engines.flower.secagg.terms import Secure
from fedshift.engines.flower.server import ServerRun
from tests.cli.calling import QUICK, call, write_npz
from tests.deploy import cases
from tests.deploy.field import NAMES, PATH, Field, kill_all, settled, wait_for
from tests.engines.flower.sites import serve
from tests.methods.test_battery import make
from tests.toys import federation, largest_difference

KILLED, ROUNDS = 2, 3
TERMS = {"clip": 1024.0, "bits": 50}


@pytest.fixture(scope="module")
def killed(field: Field):
    """A run in whose second round site c is killed when it is asked for its masked upload."""
    os.environ["PYTHONPATH"] = PATH
    (field.folder / "c").mkdir()
    files.write_json(field.folder / "c" / "faults.json", {str(KILLED): "stop-mask"})
    field.node("a", require_secure=True, peers=str(field.certs))
    field.node("b", require_secure=True, peers=str(field.certs))
    node = field.node("c", "tests.deploy.rogue", heartbeat=10)  # soon known to be gone
    path = field.deployment(
        "secure",
        method="scaffold",
        seconds=45,
        min_sites=2,
        protocol={"rounds": ROUNDS, "epochs": 1, "batch": 5, "lr": 0.1, "eps": 1e-4},
        secure={"enabled": True, **TERMS},
    )
    server = field.start("deploy", path, log="secure.log")
    wait_for((field.folder / "c" / "stopped").exists, 400)
    kill_all(node)
    assert server.wait(600) == 0, field.log("secure.log")
    return field, settled(field.folder / "secure" / "status.json")["rounds"]


def test_the_round_goes_on_without_the_site_that_was_killed(killed):
    _, rounds = killed
    assert rounds[0]["took_part"] == list(NAMES)
    for entry in rounds[KILLED - 1 :]:
        assert entry["took_part"] == ["a", "b"] and list(entry["left_out"]) == ["c"]


def test_the_model_is_that_of_the_sites_in_the_sums(killed, tmp_path):
    field, _ = killed

    def away(site, exchange, answer):
        return None if site == "c" and exchange >= KILLED else answer

    protocol = cases.PROTOCOL.replace(rounds=ROUNDS)
    plain = serve("scaffold", tmp_path, protocol, change=away).play()
    model, _ = files.load_tensors(field.folder / "secure" / "run" / "model.safetensors")
    assert largest_difference(plain.progress.server.model, model) < 1e-9


def test_sites_that_demand_it_refuse_a_run_without_it(killed):
    field, _ = killed
    path = field.deployment(
        "plain",
        sites=["a", "b"],  # c is gone: nobody waits for it
        seconds=45,
        protocol={"rounds": 1, "epochs": 1, "batch": 5, "lr": 0.1},
    )
    server = field.start("deploy", path, log="plain.log")
    assert server.wait(400) == 2
    assert "demands secure aggregation" in field.log("plain.log")


def test_no_secret_is_left_on_disks_of_sites_that_went_on(killed):
    field, _ = killed
    for name in ("a", "b"):
        assert list(field.folder.glob(f"{name}/state/*/secret/*")) == []


def test_the_simulator_equals_the_loop(tmp_path):
    from fedshift.engines.flower.simulation import Simulation

    fed = federation()
    run = ServerRun(
        fed,
        make("fedbn"),
        cases.PROTOCOL,
        "tests.toys:ToyNet",
        dtype="float64",
        device="cpu",
        carrier=lambda: Simulation(local.prepare(fed, tmp_path)),
        secure=Secure(**TERMS),
        warn=lambda text: None,
    ).play()
    one = cases.loop("fedbn")
    assert largest_difference(one.progress.server.model, run.progress.server.model) < 1e-9


def test_the_command_line_plays_it_to_its_end(tmp_path, capsys):
    """On the local simulator, within what summing whole multiples of a step costs."""
    data = write_npz(tmp_path / "data.npz", ("a", "b", "c"))
    words = ("run", "fedavg", "--data", data, *QUICK, "--dtype", "float64", "--json", "--engine")
    plain = call(capsys, *words, "loop", "--out", tmp_path / "plain").json
    found = call(capsys, *words, "flower", "--secure", "--out", tmp_path / "secure").json
    assert found["engine"] == "flower" and found["rounds"] == plain["rounds"] == 2
    assert found["per_client"] == pytest.approx(plain["per_client"])
    summed, each = (
        files.load_tensors(tmp_path / name / "model.safetensors")[0] for name in ("secure", "plain")
    )
    assert 0 < largest_difference(summed, each) < 1e-7
    assert list((tmp_path / "secure").glob("sites/*/state/*/opened.json")), "sites have masked"
    assert list((tmp_path / "secure").glob("sites/*/state/*/secret/*")) == []
