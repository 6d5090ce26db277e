"""Sites that fail, cheat, hang, die and come back; a server that dies: nothing saved is lost."""

from __future__ import annotations

import json
import os

import pytest

import fedshift as fs
from fedshift import files
from tests.deploy.field import NAMES, PATH, Field, kill_all, settled, wait_for
from tests.engines.flower.sites import serve
from tests.methods.test_battery import PROTOCOL
from tests.toys import federation, largest_difference

KILLED, ROUNDS, LIMIT = 10, 17, 100  # Flower notices a dead process after 64 s
FAULTS = {2: "nan", 3: "shape", 4: "name", 5: "pickle", 6: "huge", 7: "raise", 8: "die", 9: "hang"}
REASONS = {
    2: "not finite",
    3: "has shape [8, 3] instead of [3, 8]",
    4: "holds 'model/evil'",
    5: "packed as 'numpy.ndarray', which is never",
    6: "has shape [134217728]",
    7: "the disk is on fire",
    8: "its process ended",
    9: ("no answer in time", "its process ended"),  # both happen at the limit of the round
}


@pytest.fixture(scope="module")
def battered(field: Field):
    """A run in which site c does something else wrong in every round, is killed and comes back."""
    os.environ["PYTHONPATH"] = PATH
    faults = {
        # time passes until Flower lets a killed node in again
        "a": {r: f"slow-12-{r}" for r in range(KILLED + 1, ROUNDS - 1)},
        "c": {**FAULTS, KILLED: f"slow-60-{KILLED}"},
    }
    for name in ("a", "c"):
        folder = field.folder / name
        folder.mkdir()
        (folder / "faults.json").write_text(json.dumps(faults[name]))
    field.node("a", "tests.deploy.rogue")
    field.node("b")
    node = field.node("c", "tests.deploy.rogue")
    path = field.deployment(
        "battered",
        method="scaffold",
        seconds=LIMIT,
        min_sites=2,
        protocol={"rounds": ROUNDS, "epochs": 1, "batch": 5, "lr": 0.1, "eps": 1e-4},
    )
    server = field.start("deploy", path, log="battered.log")
    began = field.folder / "c" / f"slow-60-{KILLED}.begun"
    wait_for(began.exists, 900)
    kill_all(node)
    (field.folder / "c" / "faults.json").write_text("{}")
    field.node("c", "tests.deploy.rogue")
    assert server.wait(900) == 0, field.log("battered.log")
    return field, settled(field.folder / "battered" / "status.json")["rounds"]


@pytest.mark.parametrize("round", FAULTS)
def test_what_went_wrong_is_said(round, battered):
    _, rounds = battered
    assert rounds[round - 1]["took_part"] == ["a", "b"]
    reason = REASONS[round]
    told = rounds[round - 1]["left_out"]["c"]
    assert any(r in told for r in (reason if isinstance(reason, tuple) else (reason,))), told


def test_a_site_that_fails_is_back_in_the_next_round(battered):
    _, rounds = battered
    assert rounds[0]["took_part"] == list(NAMES)
    hung = rounds[8]
    assert hung["seconds"] < 2 * LIMIT, "a site that hangs must not hold up more than its round"


def test_a_site_killed_in_a_round_comes_back_with_the_same_key(battered):
    _, rounds = battered
    assert "c" in rounds[KILLED - 1]["left_out"]
    assert rounds[-1]["took_part"] == list(NAMES), rounds[-1]


def test_the_model_is_that_of_the_answers_that_counted(battered, tmp_path):
    field, rounds = battered
    gone = {k for k, entry in enumerate(rounds, 1) if "c" in entry["left_out"]}
    assert all(set(entry["left_out"]) <= {"c"} for entry in rounds)
    protocol = PROTOCOL.replace(rounds=ROUNDS)

    def away(site, exchange, answer):
        return None if site == "c" and exchange in gone else answer

    whole = serve("scaffold", tmp_path, protocol, change=away).play()
    model, _ = files.load_tensors(field.folder / "battered" / "run" / "model.safetensors")
    assert largest_difference(whole.progress.server.model, model) < 1e-9


def test_a_server_that_is_killed_goes_on(battered):
    """Over the same sites, which connect again by themselves."""
    field, _ = battered
    for name in ("a", "c"):
        (field.folder / name / "faults.json").write_text("{}")
    path = field.deployment(
        "killed",
        method="fedbn",
        protocol={"rounds": 3, "epochs": 1, "batch": 5, "lr": 0.1, "eps": 1e-4},
    )
    server = field.start("deploy", path, log="killed.log")
    status = field.folder / "killed" / "status.json"
    wait_for(lambda: settled(status).get("rounds"), 400)
    kill_all(server)
    assert len(settled(status)["rounds"]) < 3
    again = field.start("deploy", path, log="again.log")
    assert again.wait(60) == 2 and "--resume" in field.log("again.log")
    again = field.start("deploy", path, "--resume", log="again.log")
    assert again.wait(400) == 0, field.log("again.log")
    assert settled(status)["state"] == "ended"
    loop = fs.Run(
        federation(),
        "fedbn",
        PROTOCOL.replace(rounds=3),
        "tests.toys:ToyNet",
        dtype="float64",
        device="cpu",
        engine="loop",
        workers=1,
        warn=lambda text: None,
    ).play()
    model, _ = files.load_tensors(field.folder / "killed" / "run" / "model.safetensors")
    assert largest_difference(loop.progress.server.model, model) < 1e-9


PLAIN = {"ca": "", "certificate": "", "key": ""}
SHORT = {"wait": 3, "protocol": {"rounds": 1}}


def test_too_few_sites_stop_a_run_with_a_clear_message(battered):
    field, _ = battered
    path = field.deployment("few", sites=["a", "b", "c", "nobody"], keys="", **PLAIN, **SHORT)
    done = field.start("deploy", path, log="few.log")
    assert done.wait(120) == 2
    assert "0 of 4 sites are connected after 3 s" in field.log("few.log").splitlines()[-1]
