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

LIMIT = 400  # seconds of a round: a gigabyte takes 40, and more where other things run
HANG = 30  # seconds of a round in which a site hangs
KILLED = 2  # the round in which site c is killed
AWAY = range(3, 9)  # rounds that wait until it is back, for a while each
WHILE = 20  # seconds
FAULTS = dict(enumerate(("nan", "shape", "name", "pickle", "huge", "raise", "die"), 10))
ROUNDS = 17
REASONS = {
    "nan": "not finite",
    "shape": "has shape [8, 3] instead of [3, 8]",
    "name": "holds 'model/evil'",
    "pickle": "packed as 'numpy.ndarray', which is never",
    "huge": "has shape [134217728]",
    "raise": "the disk is on fire",
    "die": "its process ended: exit code 7",
}


@pytest.fixture(scope="module")
def battered(field: Field):
    """A run in which site c is killed, comes back, and then does something else wrong each round.

    The server is told early that the killed one is gone (`heartbeat`); site a holds rounds up until
    it is back.
    """
    os.environ["PYTHONPATH"] = PATH
    faults = {
        "a": dict.fromkeys(AWAY, f"until-{WHILE}"),
        "c": {**FAULTS, KILLED: "hang"},
    }
    for name in ("a", "c"):
        folder = field.folder / name
        folder.mkdir()
        (folder / "faults.json").write_text(json.dumps(faults[name]))
    field.node("a", "tests.deploy.rogue")
    field.node("b")
    node = field.node("c", "tests.deploy.rogue", heartbeat=10)
    path = field.deployment(
        "battered",
        method="scaffold",
        seconds=LIMIT,
        min_sites=2,
        protocol={"rounds": ROUNDS, "epochs": 1, "batch": 5, "lr": 0.1, "eps": 1e-4},
    )
    server = field.start("deploy", path, log="battered.log")
    wait_for((field.folder / "c" / "hang.begun").exists, 400)
    kill_all(node)
    before = field.connections("c")
    field.node("c", "tests.deploy.rogue")
    wait_for(lambda: field.connections("c") > before, 300)
    (field.folder / "a" / "go").touch()
    assert server.wait(900) == 0, field.log("battered.log")
    return field, settled(field.folder / "battered" / "status.json")["rounds"]


@pytest.mark.parametrize("round", FAULTS)
def test_what_went_wrong_is_said(round, battered):
    _, rounds = battered
    assert rounds[round - 1]["took_part"] == ["a", "b"]
    assert REASONS[FAULTS[round]] in rounds[round - 1]["left_out"]["c"]


def test_a_site_that_fails_is_back_in_the_next_round(battered):
    _, rounds = battered
    assert rounds[0]["took_part"] == list(NAMES)
    assert rounds[max(FAULTS)]["took_part"] == list(NAMES)


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
        protocol={"rounds": 6, "epochs": 1, "batch": 5, "lr": 0.1, "eps": 1e-4},
    )
    server = field.start("deploy", path, log="killed.log")
    status = field.folder / "killed" / "status.json"
    wait_for(lambda: settled(status).get("rounds"), 400)
    kill_all(server)
    assert len(settled(status)["rounds"]) < 6
    again = field.start("deploy", path, log="again.log")
    assert again.wait(60) == 2 and "--resume" in field.log("again.log")
    again = field.start("deploy", path, "--resume", log="again.log")
    assert again.wait(400) == 0, field.log("again.log")
    assert settled(status)["state"] == "ended"
    loop = fs.Run(
        federation(),
        "fedbn",
        PROTOCOL.replace(rounds=6),
        "tests.toys:ToyNet",
        dtype="float64",
        device="cpu",
        engine="loop",
        workers=1,
        warn=lambda text: None,
    ).play()
    model, _ = files.load_tensors(field.folder / "killed" / "run" / "model.safetensors")
    assert largest_difference(loop.progress.server.model, model) < 1e-9


def test_a_site_that_hangs_holds_up_one_round(battered):
    """And is there in the next one."""
    field, _ = battered
    (field.folder / "c" / "faults.json").write_text('{"1": "hang"}')
    path = field.deployment(
        "hung",
        method="fedbn",
        seconds=HANG,
        protocol={"rounds": 2, "epochs": 1, "batch": 5, "lr": 0.1},
    )
    server = field.start("deploy", path, log="hung.log")
    assert server.wait(400) == 0, field.log("hung.log")
    first, second = settled(field.folder / "hung" / "status.json")["rounds"]
    assert first["took_part"] == ["a", "b"] and first["seconds"] < 2 * HANG
    told = first["left_out"]["c"]  # both happen at the limit of the round
    assert "no answer in time" in told or f"it took longer than {HANG} s" in told
    assert second["took_part"] == list(NAMES)


PLAIN = {"ca": "", "certificate": "", "key": ""}
SHORT = {"wait": 3, "protocol": {"rounds": 1}}


def test_too_few_sites_stop_a_run_with_a_clear_message(battered):
    field, _ = battered
    path = field.deployment("few", sites=["a", "b", "c", "nobody"], keys="", **PLAIN, **SHORT)
    done = field.start("deploy", path, log="few.log")
    assert done.wait(120) == 2
    assert "0 of 4 sites are connected after 3 s" in field.log("few.log").splitlines()[-1]
