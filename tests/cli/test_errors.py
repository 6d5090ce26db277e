"""What goes wrong is said in the last line of stderr: what, where, and the remedy. Exit code 2."""

import subprocess
import sys

import pytest
import torch

from tests.cli.calling import QUICK, call

LONG = "n" * 300
EVERYBODY = [
    word
    for client in ("scanner", "camera", "blackboard", "archive", "fax")
    for word in ("--hold-out", client)
]
WRONG = {
    "unknown command": (("rnu",), "did you mean run"),
    "unknown option": (("run", "fedavg", "--round", "3"), "did you mean --rounds"),
    "option of another command": (("run", "fedavg", "--seeds", "3"), "fedshift compare"),
    "no command": ((), "--help"),
    "no method": (("run",), "no method"),
    "no methods": (("compare",), "no methods"),
    "one word too many": (("run", "fedavg", "fedprox"), "'fedprox'"),
    "unknown method": (("run", "fedporx"), "fedprox"),
    "unknown model": (("run", "fedavg", "--model", "small-cn"), "small-cnn"),
    "unknown data": (("run", "fedavg", "--data", "shifted-digit"), "shifted-digits"),
    "unknown client": (("run", "fedavg", "--hold-out", "fx"), "fax"),
    "unknown hyperparameter": (("run", "fedprox", "--set", "my=1"), "did you mean mu"),
    "hyperparameter of no method": (("run", "fedprox", "--set", "fedbr.mu=1"), "fedbr"),
    "ambiguous": (("compare", "scaffold", "fedavgm", "--set", "lr=1"), "scaffold.lr or fedavgm.lr"),
    "incomplete setting": (("run", "fedprox", "--set", "mu"), "NAME=VALUE"),
    "hyperparameter out of bounds": (("run", "fedprox", "--set", "mu=-1"), "at least 0"),
    "no number": (("run", "fedavg", "--rounds", "many"), "whole number"),
    "zero rounds": (("run", "fedavg", "--rounds", "0"), "--rounds is 0: allowed is at least 1"),
    "negative rate": (("run", "fedavg", "--lr", "-1"), "--lr"),
    "unknown optimizer": (("run", "fedavg", "--optimizer", "sdg"), "sgd"),
    "steps and epochs": (
        ("run", "fedavg", "--steps", "1", "--epochs", "1"),
        "--steps and --epochs",
    ),
    "zero workers": (("run", "fedavg", "--workers", "0"), "--workers"),
    "unknown engine": (("run", "fedavg", "--engine", "stack"), "stacked"),
    "unknown device": (("run", "fedavg", "--device", "gpu"), "cuda"),
    "unknown dtype": (("run", "fedavg", "--dtype", "half"), "float32"),
    "cannot combine": (("run", "fedavgm+scaffold"), "'fedavgm' and 'scaffold'"),
    "twice": (("compare", "fedavg", "fedavg"), "twice"),
    "missing folder": (("run", "--resume", "nowhere"), "does not exist"),
    "resume and more": (("run", "--resume", "x", "--rounds", "3"), "--rounds"),
    "resume and method": (("run", "fedavg", "--resume", "x"), "a method"),
    "missing comparison": (("compare", "--resume", "nowhere"), "does not exist"),
    "unknown list": (("list", "method"), "methods"),
    "unknown method to show": (("show", "fedbnn"), "fedbn"),
    "no run to predict with": (("predict", "nowhere", "--data", "x"), "does not exist"),
    "predict without data": (("predict", "nowhere"), "--data"),
    "each and another": (("run", "fedavg", "--hold-out", "each", "--hold-out", "fax"), "each"),
    "unknown option between methods": (("compare", "a", "--sed", "3", "b"), "did you mean --seed"),
    "each in a comparison": (("compare", "fedavg", "--hold-out", "each"), "fedshift run"),
    "no data": (("run", "fedavg", "--data", ""), "no data are named"),
    "a plus too many": (("run", "fedprox+"), "'fedprox+' leaves a method out"),
    "hyperparameter where there are none": (("run", "fedavg", "--set", "mu=1"), "there are none"),
    "a seed like another": (("run", "fedavg", "--seed", str(2**64)), "2**64 - 1"),
    "nobody left": (("run", "fedavg", *EVERYBODY), "leaves no client to train on: keep one"),
    "an image that fits nowhere": (("run", "fedavg", "--data", ".?size=1000000"), "smaller one"),
    "folder of a long name": (("run", "fedavg", "--out", LONG), "file name too long"),
    "data of a long name": (("run", "fedavg", "--data", LONG), "file name too long"),
    "run of a long name": (("run", "--resume", LONG), "file name too long"),
    "missing config": (("run", "fedavg", "--config", "no.toml"), "no.toml"),
}


@pytest.mark.parametrize("name", WRONG)
def test_is_named_with_its_remedy(capsys, name):
    argv, expected = WRONG[name]
    assert expected in call(capsys, *argv).error


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there(capsys):
    assert "take cpu" in call(capsys, "run", "fedavg", *QUICK, "--device", "cuda").error


@pytest.mark.parametrize("command", [("run",), ("compare", "fedprox", "--seeds", "1")])
def test_a_folder_that_holds_something_is_left_alone(capsys, tmp_path, command):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    found = call(capsys, *command, "fedavg", *QUICK, "--out", tmp_path / "full")
    assert "--resume" in found.error
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["mine.txt"]


def test_a_foreign_folder_cannot_be_resumed(capsys, tmp_path):
    assert "config.toml" in call(capsys, "run", "--resume", tmp_path).error
    (tmp_path / "config.toml").write_text("a = 1\n")
    assert "lacks" in call(capsys, "run", "--resume", tmp_path).error
    assert "not a comparison" in call(capsys, "compare", "--resume", tmp_path).error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("round = 3\n", "did you mean rounds"),
        ("steps = 1\nepochs = 1\n", "steps and epochs"),
        ("rounds = 0\n", "rounds in c.toml is 0"),
        ("rounds = \n", "not valid TOML"),
        ("set = 3\n", "[set]"),
        ("seeds = 3\n", "seeds"),
    ],
)
def test_files_are_checked_like_the_command_line(capsys, tmp_path, text, expected):
    (tmp_path / "c.toml").write_text(text)
    assert expected in call(capsys, "run", "fedavg", "--config", "c.toml").error


def test_best_val_needs_validation_data_before_anything_is_trained(capsys, tmp_path):
    import numpy as np

    x, y = np.zeros((8, 4, 4), np.uint8), np.arange(8) % 2
    np.savez(
        "d.npz", **{f"a/{s}/{a}": v for s in ("train", "test") for a, v in (("x", x), ("y", y))}
    )
    found = call(capsys, "run", "fedavg", *QUICK, "--data", "d.npz", "--select", "best-val")
    assert "validation" in found.error and not (tmp_path / "runs").exists()


def test_debugging_shows_the_traceback_before_the_line(capsys, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_DEBUG", "1")
    found = call(capsys, "run", "fedporx")
    assert "Traceback" in found.err and found.err.splitlines()[-1].startswith("fedshift: error: ")


@pytest.mark.skipif(sys.platform != "linux", reason="has no /dev/full")
def test_output_that_cannot_be_written_is_an_error_too():
    command = [sys.executable, "-c", "from fedshift.cli import main; raise SystemExit(main())"]
    with open("/dev/full", "w") as full:
        done = subprocess.run([*command, "list", "data"], stdout=full, stderr=-1, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "no space left on device" in done.stderr.splitlines()[-1]


def test_a_process_ends_with_code_two_and_one_line():
    command = [sys.executable, "-c", "from fedshift.cli import main; raise SystemExit(main())"]
    done = subprocess.run([*command, "run", "--rounds", "x"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("fedshift: error: ")
