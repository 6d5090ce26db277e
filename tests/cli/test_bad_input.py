"""Broken data, models and runs from the command line: one line, code 2, nothing saved is lost.

Wrong words and options are in `test_errors`, kills and full disks inside a save in
`tests/test_interruption.py`.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tests.cli.calling import QUICK, call, write_npz


def picture(path, size=(8, 8), value=100):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, value).save(path)


@pytest.fixture
def photos(tmp_path):
    """Two clients, two classes, six pictures of each."""
    for client in ("north", "south"):
        for label in ("cat", "dog"):
            for k in range(6):
                picture(tmp_path / "photos" / client / label / f"{k}.png", value=20 * k)
    return tmp_path / "photos"


def arrays(path, **changed):
    """A sound federation of two clients, with some arrays put in place of its own."""
    rng = np.random.default_rng(0)
    whole = {}
    for client in ("a", "b"):
        for split in ("train", "val", "test"):
            whole[f"{client}/{split}/x"] = rng.integers(0, 255, (12, 6, 6), dtype=np.uint8)
            whole[f"{client}/{split}/y"] = np.arange(12) % 3
    whole |= {name.replace("_", "/"): value for name, value in changed.items()}
    np.savez(path, **whole)
    return path


def test_sound_data_run(capsys, tmp_path, photos):
    assert call(capsys, "run", "fedavg", *QUICK, "--data", photos).code == 0
    assert call(capsys, "run", "fedavg", *QUICK, "--data", arrays(tmp_path / "d.npz")).code == 0


def test_a_missing_folder(capsys, tmp_path):
    assert "gone" in call(capsys, "run", "fedavg", "--data", tmp_path / "gone").error


def test_an_empty_folder(capsys, tmp_path):
    (tmp_path / "empty").mkdir()
    error = call(capsys, "run", "fedavg", "--data", tmp_path / "empty").error
    assert "empty" in error and "client" in error


@pytest.mark.parametrize("kind", ["truncated", "not an image"])
def test_a_broken_image(capsys, photos, kind):
    broken = photos / "south" / "dog" / "3.png"
    broken.write_bytes(broken.read_bytes()[:50] if kind == "truncated" else b"hello")
    error = call(capsys, "run", "fedavg", *QUICK, "--data", photos).error
    assert str(broken) in error


def test_pictures_of_different_sizes(capsys, photos):
    picture(photos / "south" / "dog" / "big.png", size=(9, 9))
    error = call(capsys, "run", "fedavg", *QUICK, "--data", photos).error
    assert "size" in error and "big.png" in error


def test_a_client_without_training_data(capsys, photos):
    for label in ("cat", "dog"):
        for split in ("train", "test"):
            picture(photos.parent / "split" / "north" / split / label / "0.png")
        picture(photos.parent / "split" / "south" / "test" / label / "0.png")
    error = call(capsys, "run", "fedavg", *QUICK, "--data", photos.parent / "split").error
    assert "'south'" in error and "no training data" in error


NONE = np.zeros((0, 6, 6), np.uint8)
BAD_ARRAYS = {
    "labels out of range": ({"b_train_y": np.full(12, 7), "classes": np.array(list("xyz"))}, "7"),
    "negative labels": ({"b_train_y": np.arange(12) - 1}, "-1"),
    "labels not integers": ({"b_train_y": np.arange(12) / 2}, "whole numbers"),
    "NaN": ({"a_test_x": np.full((12, 6, 6), np.nan), "a_train_x": np.zeros((12, 6, 6))}, "NaN"),
    "infinity": ({"a_train_x": np.full((12, 6, 6), np.inf)}, "infinite"),
    "shapes of clients differ": (
        {f"b_{s}_x": np.zeros((12, 5, 5), np.uint8) for s in ("train", "val", "test")},
        "shape",
    ),
    "more labels than samples": ({"a_train_y": np.zeros(13, int)}, "13"),
    "labels one-hot": ({"b_train_y": np.eye(3, dtype=int)[np.arange(12) % 3]}, "one whole number"),
    "labels that would fill memory": ({"b_train_y": np.full(12, 2**40)}, "count the classes"),
    "bytes here, floats there": ({"b_test_x": np.zeros((12, 6, 6))}, "floats for all"),
    "labels as words": ({"a_train_y": np.array(["cat", "dog"] * 6)}, "give numbers"),
    "two classes of one name": ({"classes": np.array(["a", "b", "b"])}, "two classes named 'b'"),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_bad_arrays(capsys, tmp_path, name):
    changed, expected = BAD_ARRAYS[name]
    error = call(capsys, "run", "fedavg", *QUICK, "--data", arrays(tmp_path / "d.npz", **changed))
    assert expected in error.error
    assert any(name in error.error for name in ("'a'", "'b'", "a/", "b/"))


def test_a_link_to_an_image_that_is_gone(capsys, photos):
    (photos / "south" / "dog" / "9.png").symlink_to(photos / "nowhere.png")
    error = call(capsys, "run", "fedavg", *QUICK, "--data", photos).error
    assert "9.png" in error and "remove it" in error


@pytest.mark.filterwarnings("default")
def test_names_as_people_have_them(capsys, tmp_path):
    for client in ("Nørd Klinik", "日本", "a+b (2)"):
        for label in ("Große Katze", "dog.2"):
            for k in range(8):
                picture(tmp_path / "my photos" / client / label / f"{k}.PNG", value=20 * k)
    (tmp_path / "my photos" / "日本" / "notes.txt").write_text("x")
    out = tmp_path / "a run" / "of mine"
    argv = ("fedbn", "--rounds", "1", "--steps", "1", "--batch", "4", "--model", "small-cnn")
    found = call(capsys, "run", *argv, "--data", tmp_path / "my photos", "--out", out)
    assert found.code == 0 and "notes.txt" in found.err and "Glyph" not in found.err
    assert {p.stem for p in (out / "personal").iterdir()} == {"Nørd Klinik", "日本", "a+b (2)"}
    assert "日本" in (out / "report.html").read_text()
    assert call(capsys, "run", "--resume", out).code == 0
    new = tmp_path / "my photos" / "日本"
    found = call(capsys, "predict", out, "--data", new, "--client", new.name)
    assert found.code == 0 and "Große Katze" in found.out


def test_a_run_without_test_data_does_not_promise_a_page(capsys, tmp_path):
    nothing = {f"{c}_test_{a}": v for c in "ab" for a, v in (("x", NONE), ("y", NONE[:, 0, 0]))}
    data = arrays(tmp_path / "d.npz", **nothing)
    found = call(capsys, "run", "fedavg", *QUICK, "--data", data, "--out", "run")
    assert found.code == 0 and "no test data were scored" in found.err
    assert "report.html" not in found.out.splitlines()[-1] and "metrics.jsonl" in found.out


def test_a_file_that_is_no_npz(capsys, tmp_path):
    (tmp_path / "d.npz").write_bytes(b"PK\x03\x04 not really")
    assert "d.npz" in call(capsys, "run", "fedavg", "--data", tmp_path / "d.npz").error


def test_batch_norm_and_a_batch_of_one(capsys, tmp_path):
    small = ("--rounds", "1", "--steps", "1", "--workers", "1")
    error = call(capsys, "run", "fedavg", *small, "--model", "small-cnn", "--batch", "1").error
    assert "batch norm" in error and "2 or more" in error
    sound = np.zeros((12, 8, 8), np.uint8)
    one = {f"{c}_{s}_x": sound for c in "ab" for s in ("train", "val", "test")}
    one |= {"b_train_x": sound[:1], "b_train_y": np.zeros(1, int)}
    data = arrays(tmp_path / "d.npz", **one)
    error = call(capsys, "run", "fedavg", *small, "--model", "small-cnn", "--data", data).error
    assert "'b'" in error and "batch norm" in error


def test_stages_that_the_model_does_not_have(capsys, tmp_path):
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__()\n"
        "        self.conv1 = nn.Conv2d(1, 2, 3)\n"
        "        self.flat = nn.Flatten()\n"
        "        self.fc = nn.Linear(392, classes)\n"
        "    def forward(self, x):\n"
        "        return self.fc(self.flat(self.conv1(x)))\n"
    )
    own = ("run", "fedavg", "--rounds", "1", "--steps", "1", "--batch", "8", "--workers", "1")
    own += ("--model", "net.py:Net", "--head", "fc")
    error = call(capsys, *own, "--stages", "conv2").error
    assert "conv2" in error and "conv1" in error
    assert "nett" in call(capsys, *own[:-3], "nett.py:Net", "--stages", "conv1").error
    assert call(capsys, *own, "--stages", "conv1").code == 0


def test_a_model_that_does_not_run_in_the_type_of_the_run(capsys, tmp_path):
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__()\n"
        "        self.fc = nn.Linear(256, classes).double()\n"
        "    def forward(self, x):\n"
        "        return self.fc(x.flatten(1).double())\n"
    )
    error = call(capsys, "run", "fedavg", *QUICK[2:], "--model", "net.py:Net", "--head", "fc").error
    assert "does not run in float32" in error and "type" in error


def test_a_corrupt_checkpoint(capsys, tmp_path):
    assert call(capsys, "run", "fedavg", *QUICK, "--out", "done").code == 0
    (found,) = (tmp_path / "done" / "checkpoint").glob("*/tensors.safetensors")
    whole = found.read_bytes()
    found.write_bytes(whole[: len(whole) // 2])
    assert "tensors.safetensors" in call(capsys, "run", "--resume", "done").error
    found.write_bytes(whole[:-4] + b"\xff\xff\xff\xff")
    assert "damaged" in call(capsys, "run", "--resume", "done").error
    found.write_bytes(whole)
    assert call(capsys, "run", "--resume", "done").code == 0


def test_a_full_disk(tmp_path):
    """A limit on the size of files stands for the disk: the checkpoint of mlp does not fit."""

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    command = [sys.executable, "-c", "from fedshift.cli import main; raise SystemExit(main())"]
    run = [*command, "run", "fedavg", *QUICK, "--out", str(tmp_path / "run")]
    done = subprocess.run(run, capture_output=True, text=True, preexec_fn=limit)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "checkpoint" in last and "--resume" in last
    again = [*command, "run", "--resume", str(tmp_path / "run")]
    assert subprocess.run(again, capture_output=True).returncode == 0


def test_a_client_of_one_class_or_smaller_than_a_batch_is_a_warning(capsys, tmp_path):
    data = arrays(tmp_path / "d.npz", b_train_y=np.ones(12, int))
    found = call(capsys, "run", "fedavg", *QUICK[:-4], "--batch", "16", "--data", data)
    assert found.code == 0
    assert "fedshift: warning: client 'b' has training samples of one class" in found.err
    assert "fedshift: warning: client 'a' has 12 training samples, fewer than" in found.err


def test_odd_wishes_are_granted_with_a_warning(capsys, tmp_path):
    alike = {f"{c}_{s}_y": np.zeros(12, int) for c in "ab" for s in ("train", "val", "test")}
    found = call(capsys, "run", "fedavg", *QUICK, "--data", arrays(tmp_path / "d.npz", **alike))
    assert found.code == 0 and "'d' has one class alone" in found.err
    found = call(capsys, "run", "fedavg", *QUICK, "--participation", "99")
    assert (
        found.code == 0 and "99 clients were to take part" in found.err and "trains 5" in found.err
    )


def test_a_client_that_diverges_is_left_out_and_named(capsys, tmp_path):
    sound = np.zeros((12, 6, 6))
    wild = {f"{c}_{s}_x": sound for c in "ab" for s in ("train", "val", "test")}
    wild["b_train_x"] = np.full((12, 6, 6), 3e38)
    data = arrays(tmp_path / "d.npz", **wild)
    found = call(capsys, "run", "fedavg", *QUICK, "--data", data, "--out", "run", "--json")
    assert found.code == 0 and "client 'b' has NaN or infinite values in round 1" in found.err
    assert '"left_out": {"b"' in (tmp_path / "run" / "metrics.jsonl").read_text()
    wild["a_train_x"] = np.full((12, 6, 6), 3e38)
    data = arrays(tmp_path / "all.npz", **wild)
    assert "every client" in call(capsys, "run", "fedavg", *QUICK, "--data", data).error


def test_npz_helper_is_sound(capsys, tmp_path):
    data = write_npz(tmp_path / "d.npz")
    assert call(capsys, "run", "fedavg", *QUICK, "--data", data).code == 0


def test_test_data_alone_are_never_trained_on(capsys, tmp_path):
    x, y = np.zeros((12, 6, 6), np.uint8), np.arange(12) % 3
    np.savez("d.npz", **{"a/test/x": x, "a/test/y": y, "b/x": x, "b/y": y})
    error = call(capsys, "run", "fedavg", *QUICK, "--data", "d.npz").error
    assert "'a'" in error and "no training data" in error
