"""Every method has a page, which is what would be made of it now; `make docs` makes them."""

from __future__ import annotations

import inspect
import shutil
import sys

import pytest
from docs.make import curve, index, markdown, page
from docs.make.__main__ import main

import fedshift as fs
from fedshift import comparison, methods
from fedshift.files import read_json, read_text

ALL = page.names()


@pytest.mark.parametrize("name", ALL)
def test_a_page_is_current(name):
    assert page.stale(name) == [], "run `make docs`"


def test_the_table_of_all_is_current():
    assert not index.stale(), "run `make docs`"


def test_there_are_pages_of_methods_alone():
    found = {p.name for p in page.HOME.iterdir()}
    assert found == {f"{name}.md" for name in ALL} | {"README.md", "curves"}
    pictures = {p.name for p in curve.HOME.iterdir()}
    assert pictures == {f"{name}{end}" for name in ALL for end in (".json", ".svg")}


@pytest.mark.parametrize("name", ALL)
def test_a_docstring_says_what_a_reader_asks(name):
    module = sys.modules[methods.method_class(name).__module__]
    title, parts = markdown.sections(inspect.getdoc(module) or "")
    assert ":" in title and parts[""], "a title with what it does, and the idea"
    assert {"The loss", "The step"} & set(parts)
    assert {"When to use it", page.WIRE} <= set(parts)
    assert all(parts.values())


@pytest.mark.parametrize("name", ALL)
def test_a_curve_is_small_and_says_what_it_is_of(name):
    data = read_json(curve.data_path(name))
    assert data["method"] == name and data["view"] == methods.method_class(name).view
    assert [s["seed"] for s in data["seeds"]] == list(curve.SEEDS)
    for seed in data["seeds"]:
        assert seed["rounds"][-1] >= data["planned"]
        assert len(seed["mean"]) == len(seed["worst"]) == len(seed["rounds"])
        assert all(0 <= w <= m <= 1 for m, w in zip(seed["mean"], seed["worst"]))
    assert curve.picture_path(name).stat().st_size < 40_000
    told = page.text(name)
    assert all(
        f"`{n}={curve._plain(v)}`" in told.replace("\n", " ") for n, v in data["quick"].items()
    )


def test_a_picture_has_equal_bytes_each_time():
    first = curve.draw("fedbn")
    assert first == curve.draw("fedbn") and "<svg" in first[:5]
    assert "dc:date" not in first and "currentColor" in first
    assert all(f"fedbn, {what}" in first for what in ("mean of clients", "worst client"))
    assert "fedavg, mean" in first and "fedavg, mean" in curve.draw("fedavg")


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """The pages elsewhere, where they may be spoiled."""
    home = tmp_path / "methods"
    shutil.copytree(page.HOME, home)
    monkeypatch.setattr(page, "HOME", home)
    monkeypatch.setattr(curve, "HOME", home / "curves")
    monkeypatch.setattr(index, "PATH", home / "README.md")
    return home


def test_the_check_finds_what_is_not_current(copy, capsys):
    assert main(["--check", "fedavg", "fedbn"]) == 0 and capsys.readouterr().out == ""
    path = copy / "fedbn.md"
    path.write_text(read_text(path).replace("batch norm", "batchnorm"))
    assert main(["--check", "fedavg", "fedbn"]) == 1
    assert "fedbn.md" in (said := capsys.readouterr().out) and "make docs" in said
    (copy / "curves" / "fedavg.svg").unlink()
    assert main(["--check", "fedavg"]) == 1 and "fedavg.svg" in capsys.readouterr().out
    (copy / "README.md").write_text("")
    assert main(["--check", "fedprox"]) == 1 and "README.md" in capsys.readouterr().out


def test_texts_are_made_anew_without_training(copy, monkeypatch):
    monkeypatch.setattr(curve, "train", lambda name: pytest.fail("there is a curve already"))
    before = {p.name: p.read_bytes() for p in copy.iterdir() if p.is_file()}
    (copy / "fedbn.md").unlink()
    assert main(["fedbn"]) == 0
    assert {p.name: p.read_bytes() for p in copy.iterdir() if p.is_file()} == before
    assert not list(copy.glob("**/.tmp-*"))


def test_training_gives_the_numbers_of_a_curve(monkeypatch):
    short = fs.Protocol(rounds=1, epochs=4, batch=16, lr=0.3)
    monkeypatch.setattr(comparison, "recommended_protocol", lambda federation: short)
    monkeypatch.setattr(curve, "MODEL", "mlp")
    data = curve.train("local")
    assert data["view"] == "personal" and data["quick"] == {}
    assert [s["rounds"] for s in data["seeds"]] == [[1], [1]] and data["planned"] == 1
    assert data["seeds"][0]["mean"] != data["seeds"][1]["mean"]


def test_an_unknown_method_is_told_in_a_line(capsys):
    assert main(["fedbm"]) == 2 and "fedbn" in capsys.readouterr().err


def test_sections_of_a_docstring():
    title, parts = markdown.sections(
        "Name: does it.\n\nIdea.\n\n## One\n\na\n\n    b\n\n## Two\nc\n"
    )
    assert title == "Name: does it"
    assert parts == {"": "Idea.", "One": "a\n\n    b", "Two": "c"}
    assert markdown.sections("# Name: it\nIdea.")[0] == "Name: it"


def test_tables():
    text = markdown.table([{"a": "x|y", "b": "1"}], ["a", "b"], ["b"])
    assert text == "| a | b |\n| :-- | --: |\n| x\\|y | 1 |"
