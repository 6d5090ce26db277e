"""A segmentation on the command line, from data to masks."""

import csv
import io

import numpy as np
import pytest
import torch
from PIL import Image

import fedshift as fs
from fedshift.cli import main
from tests.cli.calling import call

SMALL = ("--rounds", "2", "--steps", "2", "--batch", "4", "--workers", "1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a method with personal models, on the embedded segmentation."""
    out = tmp_path_factory.mktemp("segmentation") / "fedbn"
    assert main(["run", "fedbn", "--data", "shifted-digit-masks", *SMALL, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def fax():
    return fs.data.load("shifted-digit-masks")["fax"].test


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_a_run_says_dice_and_takes_the_recommended_network(capsys, trained):
    found = call(capsys, "run", "--resume", trained)
    assert found.code == 0 and "dice in %" in found.out and "accuracy" not in found.out
    assert "accuracy" not in (trained / "report.html").read_text()
    assert 'model = "unet-small"' in (trained / "config.toml").read_text()


def test_a_method_that_cannot_is_refused_before_the_run(capsys, tmp_path):
    argv = ("run", "fraug", "--data", "shifted-digit-masks", *SMALL, "--out", "r")
    wrong = call(capsys, *argv).error
    assert (
        "'fraug' learns classification, not segmentation" in wrong
        and "such as fedbn or fedfa" in wrong
    )
    assert not (tmp_path / "r").exists()


def test_the_score_of_a_client_is_the_one_of_its_run(capsys, trained):
    run = call(capsys, "run", "--resume", trained, "--json").json
    argv = ("predict", trained, "--data", "shifted-digit-masks", "--client", "fax")
    found = call(capsys, *argv, "--json").json
    assert found["metric"] == "dice" and found["samples"] == found["labelled"] == 60
    assert found["score"] == pytest.approx(run["per_client"]["fax"])
    rows = found["predictions"]
    assert sum(row["dice"] for row in rows) / 60 == pytest.approx(found["score"])
    assert sum(rows[0]["shares"].values()) == pytest.approx(1)


def test_masks_as_images_as_one_file_and_as_a_table(capsys, trained, fax, tmp_path):
    np.savez("new.npz", x=fax.x[:5].numpy(), y=fax.y[:5].numpy())
    argv = ("predict", trained, "--data", "new.npz", "--client", "fax", "--out")
    by_hand = fs.load(trained).predict(fax.x[:5], client="fax").argmax(1)
    found = call(capsys, *argv, "masks")
    assert found.code == 0 and "on 5 labelled samples" in found.err
    for k in range(5):
        with Image.open(tmp_path / "masks" / f"{k}.png") as image:
            assert image.mode == "P"
            assert np.array_equal(np.asarray(image), by_hand[k].numpy())
    assert call(capsys, *argv, "masks.npz").code == 0
    with np.load("masks.npz", allow_pickle=False) as saved:
        assert np.array_equal(saved["y"], by_hand.numpy()) and saved["y"].dtype == np.uint8
        assert saved["names"].tolist() == list("01234")
        assert saved["classes"].tolist() == ["paper", "ink"]
    assert call(capsys, *argv, "table.csv").code == 0
    tables = [(tmp_path / p).read_text() for p in ("table.csv", "masks/table.csv")]
    assert tables[0] == tables[1]
    rows = rows_of(tables[0])
    assert list(rows[0]) == ["index", "paper", "ink", "dice"]
    share = by_hand[0].double().mean().item()
    assert float(rows[0]["ink"]) == pytest.approx(share, abs=1e-5)


def test_nothing_is_written_over(capsys, trained, fax, tmp_path):
    np.savez("new.npz", x=fax.x[:2].numpy())
    argv = ("predict", trained, "--data", "new.npz", "--unseen", "--out")
    assert "holds something already" in call(capsys, *argv, trained).error
    assert "choose another name" in call(capsys, *argv, "new.npz").error
    found = call(capsys, *argv, "masks")
    assert found.code == 0 and "dice" not in found.err, "there are no labels"
    assert list(rows_of((tmp_path / "masks" / "table.csv").read_text())[0])[-1] == "ink"


def save(folder, name, x, y=None):
    for kind, picture in (("images", x), ("masks", y)):
        if picture is not None:
            (folder / kind).mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture.numpy()).save(folder / kind / f"{name}.png")


def test_a_folder_of_images_and_masks_from_training_to_masks(capsys, tmp_path):
    fed = fs.data.load("shifted-digit-masks")
    for client in ("scanner", "fax"):
        samples = fed[client].train
        for k in range(12):
            save(tmp_path / "scans" / client, k, samples.x[k, 0], 255 * samples.y[k])
    argv = ("run", "fedavg", "--data", 'scans?classes=["paper","ink"]', *SMALL, "--out", "r")
    assert call(capsys, *argv).code == 0
    test = fed["fax"].test
    for k in range(3):
        save(tmp_path / "new", k, test.x[k, 0], 255 * test.y[k] if k else None)
    found = call(capsys, "predict", "r", "--data", "new", "--json").json
    assert [row["file"] for row in found["predictions"]] == [f"images/{k}.png" for k in range(3)]
    assert (found["samples"], found["labelled"]) == (3, 2)
    assert found["predictions"][0]["dice"] is None
    scored = fs.load("r").score((test.x[1:3], test.y[1:3]))
    assert found["score"] == pytest.approx(scored)
    assert call(capsys, "predict", "r", "--data", "new", "--out", "m").code == 0
    assert (tmp_path / "m" / "images-0.png").is_file()


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (np.zeros((2, 32), np.int64), "labels of shape [2, 32]: the run takes [2, 32, 32]"),
        (np.full((2, 32, 32), 5), "2 classes"),
    ],
)
def test_labels_that_do_not_fit_are_refused(capsys, trained, y, expected):
    np.savez("new.npz", x=np.zeros((2, 32, 32), np.uint8), y=y)
    argv = ("predict", trained, "--data", "new.npz", "--unseen")
    assert expected in call(capsys, *argv).error


def test_two_inputs_of_one_name_are_refused(capsys, trained, tmp_path):
    x = torch.zeros(32, 32, dtype=torch.uint8)
    (tmp_path / "new").mkdir()
    for name in ("a.png", "a.bmp"):
        Image.fromarray(x.numpy()).save(tmp_path / "new" / name)
    argv = ("predict", trained, "--data", "new", "--unseen", "--out")
    assert "both be called a.png" in call(capsys, *argv, "masks").error
    assert call(capsys, *argv, "masks.npz").code == 0
