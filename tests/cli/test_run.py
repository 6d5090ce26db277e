"""`fedshift run`: options, what it prints and writes, resuming, holding out."""

import shutil
import signal
import subprocess
import sys
import time
import tomllib

import pytest
import torch

from fedshift import files
from fedshift.cli import result
from fedshift.cli.options import PROTOCOL, flag
from fedshift.trip import Trip
from tests.cli.calling import QUICK, call, write_npz

KEYS = {
    *("method", "data", "model", "engine", "device", "dtype", "seed", "rounds", "metric"),
    *("select", "mean", "worst", "per_client", "bytes_up", "bytes_down", "seconds"),
    *("weights_sha256", "view", "out"),
}


def config(folder):
    return tomllib.loads((folder / "config.toml").read_text())


def test_json_has_exactly_the_promised_keys(capsys, tmp_path):
    found = call(capsys, "run", "fedprox", *QUICK, "--json", "--out", tmp_path / "r")
    assert found.code == 0 and len(found.out.splitlines()) == 1
    run = found.json
    assert set(run) == KEYS
    assert (run["method"], run["data"], run["model"]) == ("fedprox", "shifted-digits", "mlp")
    assert (run["rounds"], run["view"], run["select"]) == (2, "global", "last")
    scores = run["per_client"].values()
    assert run["worst"] == min(scores) and all(0 <= s <= 1 for s in scores)
    assert run["mean"] == pytest.approx(sum(scores) / 5)
    assert run["bytes_up"] > 0 and len(run["weights_sha256"]) == 64


def test_the_folder_holds_what_was_promised_and_the_table_says_its_rule(capsys, tmp_path):
    found = call(capsys, "run", "fedavg", *QUICK, "--out", tmp_path / "r")
    names = {p.name for p in (tmp_path / "r").iterdir()}
    wanted = {"config.toml", "metrics.jsonl", "model.safetensors", "checkpoint", "report.html"}
    assert wanted <= names
    assert "selection last" in found.out and "scanner" in found.out and "r  (" in found.out
    assert found.err == ""  # no bar where there is no terminal


VALUES = {
    "rounds": 1,
    "steps": 2,
    "batch": 4,
    "lr": 0.5,
    "optimizer": "sgd",
    "momentum": 0.5,
    "nesterov": True,
    "weight_decay": 0.25,
    "eps": 0.125,
    "reset_optimizer": False,
    "schedule": "exponential",
    "decay": 0.5,
    "clip": 2.0,
    "weights": "samples",
    "participation": 2.0,
    "eval_every": 3,
    "eval_batch": 64,
    "select": "best-val",
}


def test_every_option_of_the_protocol_arrives(capsys, tmp_path):
    assert set(VALUES) | {"epochs"} == set(PROTOCOL)
    argv = []
    for name, value in VALUES.items():
        if isinstance(value, bool):
            argv.append(flag(name) if value else flag(f"no_{name}"))
        else:
            argv += [flag(name), value]
    call(capsys, "run", "fedavg", *argv, "--model", "mlp", "--out", tmp_path / "r")
    saved = config(tmp_path / "r")["protocol"]
    assert {n: saved[n] for n in VALUES} == VALUES


def test_the_options_of_place_and_choice_arrive(capsys, tmp_path):
    argv = ("--model", "lenet", "--rounds", 1, "--steps", 1, "--batch", 4, "--seed", 3)
    argv += ("--data", "shifted-digits", "--engine", "loop", "--workers", 1, "--chunk", 2)
    argv += ("--device", "cpu", "--dtype", "float64", "--checkpoint-every", 2)
    argv += ("--hold-out", "fax", "--hold-out", "archive", "--set", "mu=0.5")
    found = call(capsys, "run", "fedprox", *argv, "--json", "--out", tmp_path / "r").json
    saved = config(tmp_path / "r")
    assert (saved["seed"], saved["engine"], saved["chunk"], saved["device"]) == (
        3,
        "loop",
        2,
        "cpu",
    )
    assert (saved["dtype"], saved["checkpoint_every"], saved["model"]) == ("float64", 2, "lenet")
    assert saved["hold_out"] == ["fax", "archive"]
    assert saved["settings"] == {"fedprox.mu": 0.5}
    assert set(found["per_client"]) == {"scanner", "camera", "blackboard"}
    assert set(found["unseen"]) == {"fax", "archive"}


def test_what_is_not_said_is_what_the_data_recommend(capsys, tmp_path):
    call(capsys, "run", "fedavg", "--rounds", 1, "--steps", 1, "--out", tmp_path / "r")
    saved = config(tmp_path / "r")
    assert saved["model"] == "small-cnn"
    assert (saved["protocol"]["batch"], saved["protocol"]["lr"]) == (16, 0.3)


def test_a_file_gives_options_and_the_command_line_wins(capsys, tmp_path):
    (tmp_path / "c.toml").write_text(
        'model = "mlp"\nrounds = 3\nepochs = 2\nlr = 0.5\nweight-decay = 0.25\nhold-out = "fax"\n'
        "[set]\nfedprox.mu = 0.5\nalpha = 0.3\n"
    )
    argv = ("--config", "c.toml", "--rounds", 1, "--steps", 1, "--set", "alpha=0.4")
    call(capsys, "run", "fedprox+mixup", *argv, "--out", tmp_path / "r")
    saved = config(tmp_path / "r")
    assert (saved["protocol"]["rounds"], saved["protocol"]["steps"]) == (1, 1)
    assert (saved["protocol"]["lr"], saved["protocol"]["weight_decay"]) == (0.5, 0.25)
    assert saved["settings"] == {"fedprox.mu": 0.5, "mixup.alpha": 0.4}
    assert saved["hold_out"] == ["fax"]


def test_default_folders_never_collide(capsys):
    outs = [call(capsys, "run", "fedavg", *QUICK, "--json").json["out"] for _ in range(2)]
    assert outs == ["runs/fedavg-shifted-digits-seed0", "runs/fedavg-shifted-digits-seed0-2"]


def test_own_model_own_method_and_own_data(capsys, tmp_path):
    (tmp_path / "my.py").write_text(
        "from dataclasses import dataclass\nfrom typing import ClassVar\nfrom torch import nn\n"
        "from fedshift import Method, hp\n\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__()\n"
        "        self.conv1 = nn.Conv2d(1, 4, 3)\n"
        "        self.fc = nn.Linear(4, classes)\n"
        "    def forward(self, x):\n"
        "        return self.fc(self.conv1(x).relu().mean((2, 3)))\n\n"
        "@dataclass(frozen=True)\n"
        "class Mine(Method):\n"
        '    name: ClassVar[str] = "mine"\n'
        '    p: float = hp(0.5, "a chance", low=0, high=1)\n'
    )
    data = write_npz(tmp_path / "d.npz")
    argv = ("--model", "my.py:Net", "--stages", "conv1", "--head", "fc", "--data", data)
    argv += ("--rounds", 1, "--steps", 1, "--batch", 4, "--set", "p=0.25", "--workers", 1)
    found = call(capsys, "run", "my.py:Mine", *argv, "--json", "--out", tmp_path / "r")
    assert found.json["method"] == "mine" and set(found.json["per_client"]) == {"a", "b"}
    again = call(capsys, "run", "--resume", tmp_path / "r", "--json")
    assert again.json["weights_sha256"] == found.json["weights_sha256"]
    assert "at most" not in call(capsys, "run", "my.py:Mine", "--set", "p=7").error


def test_a_run_begins_with_the_weights_of_a_file(capsys, tmp_path):
    """The model of a run is such a file; with a rate of 0 it comes out as it went in."""
    first, second = tmp_path / "first", tmp_path / "second"
    call(capsys, "run", "fedavg", *QUICK, "--out", first, "--seed", 3)
    weights = first / "model.safetensors"
    called = call(
        capsys, "run", "fedavg", *QUICK, "--lr", 0, "--pretrained", weights, "--out", second
    )
    assert called.code == 0, called.err
    a, b = (files.load_tensors(folder / "model.safetensors")[0] for folder in (first, second))
    for name in a:  # the mean of equal weights is rounded
        torch.testing.assert_close(a[name], b[name], rtol=1e-6, atol=1e-7)
    error = call(capsys, "run", "fedavg", *QUICK, "--pretrained", tmp_path / "none").error
    assert "pretrained weights" in error and "do not exist: check the path" in error


def test_a_finished_run_resumes_to_itself(capsys, runs):
    found = call(capsys, "run", "--resume", runs / "fedavg", "--json").json
    assert set(found) == KEYS and found["rounds"] == 2


def test_every_client_is_left_out_in_turn(capsys, tmp_path):
    data = write_npz(tmp_path / "d.npz", clients=("a", "b", "c"))
    argv = ("run", "fedavg", *QUICK, "--data", data, "--hold-out", "each")
    found = call(capsys, *argv, "--json", "--out", tmp_path / "r").json
    assert [set(r["unseen"]) for r in found["runs"]] == [{"a"}, {"b"}, {"c"}]
    assert [row["held_out"] for row in found["table"]] == ["a", "b", "c", None]
    assert {p.name for p in (tmp_path / "r").iterdir()} == {"a", "b", "c", "table.csv"}
    shutil.rmtree(tmp_path / "r" / "c")
    again = call(capsys, "run", "--resume", tmp_path / "r", "--json").json
    hashes = [[r["weights_sha256"] for r in one["runs"]] for one in (found, again)]
    assert hashes[0] == hashes[1]
    text = call(capsys, *argv, "--out", tmp_path / "s")
    assert "held out" in text.out and "mean of the others" in text.out


def test_an_interrupted_run_says_how_to_go_on_and_does(capsys, tmp_path):
    argv = ["run", "fedavg", "--model", "mlp", "--rounds", "100000", "--steps", "1"]
    argv += ["--batch", "8", "--workers", "1", "--out", str(tmp_path / "r")]
    command = [sys.executable, "-c", "import sys; from fedshift.cli import main; sys.exit(main())"]
    process = subprocess.Popen([*command, *argv], stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "r" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"fedshift run --resume {tmp_path / 'r'}" in err.splitlines()[-1]
    assert "Traceback" not in err


PLACES = {
    "training": (Trip, "step", 15),
    "writing the page": (result, "write", 2),
    "opening a folder": (files, "write_toml", 3),
}
SEVERAL = {
    "compare": ("compare", "fedavg", "fedprox", *QUICK, "--seeds", "1"),
    "run": ("run", "fedavg", *QUICK, "--hold-out", "each"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", SEVERAL)
def test_interrupted_between_or_inside_several_runs_all_go_on(
    capsys, tmp_path, monkeypatch, command, place
):
    owner, name, last = PLACES[place]
    whole, calls = getattr(owner, name), []

    def interrupting(*args, **kwargs):
        calls.append(name)
        if len(calls) == last:
            raise KeyboardInterrupt
        return whole(*args, **kwargs)

    monkeypatch.setattr(owner, name, interrupting)
    found = call(capsys, *SEVERAL[command], "--out", tmp_path / "of mine")
    assert found.code == 130 and len(calls) == last
    line = found.err.splitlines()[-1]
    assert line.endswith(f"continue with: fedshift {command} --resume '{tmp_path / 'of mine'}'")
    again = call(capsys, command, "--resume", tmp_path / "of mine", "--json")
    assert len(again.json["runs"]) == (2 if command == "compare" else 5)
