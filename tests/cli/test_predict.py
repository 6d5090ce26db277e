"""`fedshift predict`: tables of labels and probabilities for what a run never saw."""

import csv
import io

import numpy as np
import pytest
from PIL import Image

import fedshift as fs
from tests.cli.calling import call


@pytest.fixture(scope="module")
def fax():
    return fs.data.load("shifted-digits")["fax"].test


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_labels_and_probabilities_and_no_score_without_labels(capsys, runs, fax, tmp_path):
    np.savez("new.npz", x=fax.x[:7].numpy())
    found = call(capsys, "predict", runs / "fedavg", "--data", "new.npz")
    rows = rows_of(found.out)
    assert list(rows[0]) == ["index", "label", *"0123456789"] and len(rows) == 7
    for row in rows:
        shares = {c: float(row[c]) for c in "0123456789"}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-4)
        assert row["label"] == max(shares, key=shares.get)
    assert "accuracy" not in found.err


def test_the_score_of_a_client_is_the_one_of_its_run(capsys, runs):
    for method in ("fedavg", "fedbn"):
        run = call(capsys, "run", "--resume", runs / method, "--json").json
        argv = ("predict", runs / method, "--data", "shifted-digits", "--client", "fax")
        found = call(capsys, *argv, "--json").json
        assert found["score"] == pytest.approx(run["per_client"]["fax"])
        assert found["labelled"] == found["samples"] == 251
        assert found["predictions"][0]["truth"] is not None


def test_labels_give_a_score_and_a_file_takes_the_table(capsys, runs, fax, tmp_path):
    np.savez("new.npz", x=fax.x.numpy(), y=fax.y.numpy())
    argv = ("predict", runs / "fedavg", "--data", "new.npz", "--out", "t.csv")
    found = call(capsys, *argv)
    assert found.out == "" and "accuracy" in found.err
    rows = rows_of((tmp_path / "t.csv").read_text())
    right = sum(row["label"] == row["truth"] for row in rows) / len(rows)
    assert call(capsys, *argv, "--json").json["score"] == pytest.approx(right)


def test_what_is_no_table_is_not_written_over(capsys, runs, fax):
    np.savez("new.npz", x=fax.x[:3].numpy())
    before = (runs / "fedavg" / "config.toml").read_bytes()
    argv = ("predict", runs / "fedavg", "--data", "new.npz", "--out")
    assert "choose another" in call(capsys, *argv, runs / "fedavg" / "config.toml").error
    assert "choose another" in call(capsys, *argv, "new.npz").error
    assert (runs / "fedavg" / "config.toml").read_bytes() == before
    assert [call(capsys, *argv, "table.csv").code for _ in range(2)] == [0, 0]


def test_personal_models_want_a_client_or_an_unseen_site(capsys, runs):
    argv = ("predict", runs / "fedbn", "--data", "shifted-digits")
    wrong = call(capsys, *argv).error
    assert "scanner" in wrong and "--unseen" in wrong
    assert "fax" in call(capsys, *argv, "--client", "fx").error
    assert call(capsys, *argv, "--unseen", "--json").json["samples"] == 1257
    assert "--client" in call(capsys, *argv, "--unseen", "--client", "fax").error


def test_a_flat_folder_of_images_and_one_with_classes(capsys, runs, fax, tmp_path):
    for k in range(4):
        label = str(int(fax.y[k]))
        image = Image.fromarray(fax.x[k, 0].numpy())
        for place in (tmp_path / "flat", tmp_path / "sorted" / label):
            place.mkdir(parents=True, exist_ok=True)
            image.save(place / f"{k}.png")
    flat = call(capsys, "predict", runs / "fedavg", "--data", "flat")
    assert [row["file"] for row in rows_of(flat.out)] == ["0.png", "1.png", "2.png", "3.png"]
    known = call(capsys, "predict", runs / "fedavg", "--data", "sorted")
    labels = {row["file"].partition("/")[2]: row["label"] for row in rows_of(known.out)}
    assert labels == {row["file"]: row["label"] for row in rows_of(flat.out)}
    assert "on 4 labelled samples" in known.err
    assert all(row["truth"] == row["file"][0] for row in rows_of(known.out))


def test_arrays_of_several_clients_are_predicted_one_after_another(capsys, runs, fax):
    x = fax.x[:3].numpy()
    np.savez("new.npz", **{"a/x": x, "b/test/x": x, "b/test/y": fax.y[:3].numpy()})
    found = call(capsys, "predict", runs / "fedavg", "--data", "new.npz", "--json").json
    assert [p["index"] for p in found["predictions"][:4]] == ["a/0", "a/1", "a/2", "b/test/0"]
    assert (found["samples"], found["labelled"]) == (6, 3)


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"x": np.zeros((2, 9, 9), np.uint8)}, "[1, 16, 16]"),
        ({"z": np.zeros((2, 16, 16), np.uint8)}, "no array called x"),
        ({"x": np.zeros((2, 16, 16), np.int32)}, "uint8"),
        ({"x": np.full((2, 16, 16), np.nan)}, "NaN"),
        ({"x": np.zeros((2, 16, 16), np.uint8), "y": np.array([1])}, "2 inputs but 1 labels"),
        ({"x": np.zeros((2, 16, 16), np.uint8), "y": np.array([1, 12])}, "10 classes"),
    ],
)
def test_data_that_do_not_fit_are_refused(capsys, runs, arrays, expected):
    np.savez("new.npz", **arrays)
    assert expected in call(capsys, "predict", runs / "fedavg", "--data", "new.npz").error


def test_a_run_that_has_not_ended_cannot_predict(capsys, tmp_path, runs):
    import shutil

    shutil.copytree(runs / "fedavg", tmp_path / "r")
    (tmp_path / "r" / "model.safetensors").unlink()
    wrong = call(capsys, "predict", tmp_path / "r", "--data", "shifted-digits").error
    assert "fedshift run --resume" in wrong
