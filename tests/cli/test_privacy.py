"""Differential privacy on the command line: options, files, resuming, what is refused."""

import shutil
import tomllib

import pytest

from fedshift import files, ledger
from tests.cli.calling import QUICK, call, write_npz

NOISE = ("--dp-noise", "2", "--dp-clip", "0.5")


def test_any_of_its_options_turns_it_on(capsys, tmp_path):
    found = call(capsys, "run", "fedavg", *QUICK, *NOISE, "--json", "--out", tmp_path / "r").json
    assert found["privacy"] == {
        "clip": 0.5,
        "noise": 2.0,
        "where": "central",
        "delta": 1e-5,
        "clip_extras": 0.0,
        "source": "seed",
        "epsilon": ledger.epsilon(2.0, 2, 1e-5),
        "epsilon_exchange": ledger.epsilon(1.0, 2, 1e-5),
    }
    kept = tomllib.loads((tmp_path / "r" / "config.toml").read_text())["privacy"]
    assert kept == {n: v for n, v in found["privacy"].items() if not n.startswith("eps")}
    last = files.read_lines(tmp_path / "r" / "metrics.jsonl")[-1]
    assert last["epsilon"] == found["privacy"]["epsilon"]
    page = (tmp_path / "r" / "report.html").read_text()
    assert "Differential privacy" in page and "--dp-source system" in page


def test_a_file_may_hold_them(capsys, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('dp-noise = 1.5\ndp-where = "local"\n')
    out = tmp_path / "r"
    found = call(capsys, "run", "fedavg", *QUICK, "--config", path, "--json", "--out", out).json
    assert (found["privacy"]["noise"], found["privacy"]["where"]) == (1.5, "local")


def test_a_comparison_has_it_and_goes_on_with_it(capsys, tmp_path):
    words = ("compare", "fedavg", "fedprox", "--seeds", "1", *QUICK, *NOISE)
    first = call(capsys, *words, "--json", "--out", tmp_path / "c").json
    again = call(capsys, "compare", "--resume", tmp_path / "c", "--json").json
    for found in (first, again):
        assert [run["privacy"]["noise"] for run in found["runs"]] == [2.0, 2.0]


def test_so_have_the_runs_that_leave_each_client_out(capsys, tmp_path):
    data = write_npz(tmp_path / "data.npz")
    out = tmp_path / "each"
    words = ("run", "fedavg", "--data", data, *QUICK, *NOISE, "--hold-out", "each")
    call(capsys, *words, "--json", "--out", out)
    shutil.rmtree(out / "b")
    found = call(capsys, "run", "--resume", out, "--json").json
    assert [run["privacy"]["clip"] for run in found["runs"]] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("method", "more", "words"),
    [
        ("fedavg", ("--dp-clip", "0"), "privacy.clip is 0"),
        ("fedavg", ("--dp-clip", "many"), "--dp-clip is 'many': give a number"),
        ("fedavg", ("--dp-where", "here"), "choose from central | local"),
        ("fedavg", ("--dp-clipp", "1"), "did you mean --dp-clip"),
        ("fedavg", ("--dp-noise", "1", "--model", "small-cnn"), "running_mean"),
        ("scaffold", ("--dp-noise", "1"), "--dp-clip-extras"),
        ("fedavg", ("--dp-noise", "1", "--weights", "samples"), "--weights uniform"),
        ("centralized", ("--dp-noise", "1"), "no clients to protect"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(capsys, tmp_path, method, more, words):
    found = call(capsys, "run", method, *QUICK, *more, "--out", tmp_path / "r")
    assert words in found.error and not (tmp_path / "r").exists()
