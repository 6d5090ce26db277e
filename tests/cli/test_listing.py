"""`fedshift list` and `fedshift show`."""

import pytest

from fedshift import methods
from tests.cli.calling import call


@pytest.mark.parametrize("what", ["methods", "data", "models"])
def test_lists_are_arrays_of_named_objects(capsys, what):
    rows = call(capsys, "list", what, "--json").json
    assert rows and all(row["name"] and row["about"] for row in rows)
    text = call(capsys, "list", what).out
    assert all(row["name"] in text for row in rows)


def test_methods_come_with_what_it_takes_to_try_them(capsys):
    rows = {row["name"]: row for row in call(capsys, "list", "methods", "--json").json}
    assert set(rows) == set(methods.names())
    assert rows["fedbn"]["example_model"] == "small-cnn" and rows["fedbn"]["quick"] == {}


def test_show_tells_hyperparameters_paper_and_what_crosses(capsys):
    text = call(capsys, "show", "scaffold").out
    assert "learning rate of the server" in text and "at least 0" in text and "ICML 2020" in text
    assert "goes down: scaffold/" in text and "goes up: scaffold/" in text


def test_show_as_json_for_a_composition(capsys):
    found = call(capsys, "show", "fedbn+scaffold", "--set", "lr=0.5", "--json").json
    assert found["view"] == "personal"
    assert found["parts"][1]["hyperparameters"][0]["value"] == 0.5
    exchange = found["exchange"]
    assert "conv1.norm.weight" in exchange["tensors"]["kept"]
    assert "conv1.conv.weight" in exchange["tensors"]["both"]
    (stage,) = exchange["stages"]
    down = {e["name"]: e for e in stage["down"]}
    assert down["scaffold/conv1.conv.weight"]["bytes"] == 4 * 16 * 9
    assert {e["kind"] for e in stage["up"]} == {"mean"}


def test_own_tensors_of_a_final_tuning_are_shown_as_kept(capsys):
    stages = call(capsys, "show", "pfedavg", "--json").json["stages"]
    assert [s["program"] for s in stages] == ["train", "tune"]
