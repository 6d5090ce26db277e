"""Data by name: what is found, what is offered instead, and what importing costs."""

import subprocess
import sys

import numpy as np
import pytest

from fedshift import data
from fedshift.data.source import describe, parse
from fedshift.errors import BadData, BadValue, UnknownName


def test_names_have_descriptions():
    names = data.names()
    assert "shifted-digits" in names and all(names.values())
    assert all("\n" not in text for text in names.values())


def test_load_by_name_and_path(tmp_path):
    assert data.load("shifted-digits").source == "shifted-digits"
    np.savez(tmp_path / "d.npz", **{"a/x": np.zeros((9, 4), np.float32), "a/y": np.arange(9) % 2})
    fed = data.load(tmp_path / "d.npz")
    assert fed.name == "d" and data.load(fed.source).names == ("a",)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("shifted-digit", UnknownName, "did you mean shifted-digits"),
        ("photos/", BadData, "no folder or file photos/"),
        ("a/b", BadData, "no folder or file a/b"),
        ("missing.npz", BadData, "no file missing.npz"),
        ("shifted-digits?seeds=1", UnknownName, "seed"),
        ("shifted-digits?size=4", BadValue, "no option 'size'"),
        ("shifted-digits?seed=one", BadValue, "seed"),
    ],
)
def test_load_says_what_is_wrong(text, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message.replace("?", r"\?")):
        data.load(text)


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "d.csv").touch()
    with pytest.raises(BadData, match="neither"):
        data.load(tmp_path / "d.csv")


def test_source_text_comes_back():
    options = {"size": (48, 64), "shares": (0.5, 0.25, 0.25), "seed": 3}
    base, parsed = parse(describe("d", **options))
    assert base == "d"
    assert parsed == {"size": [48, 64], "shares": [0.5, 0.25, 0.25], "seed": 3}
    assert describe("d", size=None, shares=(0.6, 0.15, 0.25), seed=0) == "d"


def test_a_pipeline_and_names_come_back_too(tmp_path):
    pipeline = data.Pipeline((0.1,), (0.5,))
    np.savez(tmp_path / "d.npz", **{"a/x": np.zeros((9, 4), np.float32), "a/y": np.arange(9) % 2})
    fed = data.npz(tmp_path / "d.npz", pipeline=pipeline, name="two words", classes=["n", "y"])
    again = data.load(fed.source)
    assert (again.pipeline, again.name, again.classes) == (pipeline, "two words", ("n", "y"))


def test_a_federation_made_from_another_does_not_claim_its_source():
    fed = data.shifted_digits()
    rest = fed.without(["fax"])
    for changed in (rest, fed.pooled(), data.subsample(fed, 20), data.rotate_clients(fed, [9] * 5)):
        assert changed.source == ""


def test_a_question_mark_in_a_real_name_is_no_option(tmp_path):
    odd = tmp_path / "what?size=3"
    odd.mkdir()
    assert parse(str(odd)) == (str(odd), {})


def test_every_public_name_is_there_and_survives_the_import_of_all():
    for name in data.__all__:
        assert callable(getattr(data, name)), name
    assert set(data.__all__) == set(dir(data))
    with pytest.raises(AttributeError):
        _ = data.nothing


def test_importing_data_imports_no_torch():
    code = "import sys, fedshift.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
