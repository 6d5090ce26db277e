"""`fedshift show`: what a method says of itself, and what it is seen to send."""

import pytest

from fedshift import methods
from tests.cli.calling import call


def test_it_tells_paper_docs_hyperparameters_and_what_crosses(capsys):
    text = call(capsys, "show", "scaffold").out
    assert "ICML 2020" in text and "control variates against drift" in text
    assert "learning rate of the server" in text and "at least 0" in text
    assert "model: trains model, lowers the loss" in text
    rows = [line.split() for line in text.splitlines() if "scaffold/conv1" in line]
    assert [row[0] for row in rows] == ["down", "up", "kept"]
    assert all("96,232" in row for row in rows)


def test_stages_and_phases(capsys):
    text = call(capsys, "show", "fedlsi").out
    assert "warm-up (visit, 1 round)" in text
    assert "train (train, as many rounds as the protocol says)" in text
    text = call(capsys, "show", "fedbr").out
    assert "fedbr-max: trains fedbr_projector, raises gap" in text
    assert "model: trains model, lowers all other terms of the loss" in text


def test_as_json_for_a_composition(capsys):
    found = call(capsys, "show", "fedbn+scaffold", "--set", "lr=0.5", "--json").json
    assert found["view"] == "personal"
    assert found["parts"][1]["hyperparameters"][0]["value"] == 0.5
    items = {(i["way"], i["name"]): i for i in found["wire"]["items"]}
    assert items["kept", "conv1.norm.weight"]["of_model"]
    assert ("up", "conv1.norm.weight") not in items
    variate = items["down", "scaffold/conv1.conv.weight"]
    assert variate["bytes"] == 4 * 16 * 9 and variate["use"] == "alike"
    assert items["up", "scaffold/conv1.conv.weight"]["use"] == "mean"


def test_own_tensors_of_a_final_tuning_are_shown_as_kept(capsys):
    found = call(capsys, "show", "pfedavg", "--json").json
    assert [s["program"] for s in found["stages"]] == ["train", "tune"]
    kept = [i["name"] for i in found["wire"]["items"] if i["way"] == "kept"]
    assert kept and all(name.startswith("tuned/") for name in kept)


def test_the_wire_alone(capsys):
    whole = call(capsys, "show", "scaffold").out
    alone = call(capsys, "show", "scaffold", "--wire").out
    assert whole.endswith(alone) and alone.startswith("what crosses") and len(alone) < len(whole)
    found = call(capsys, "show", "scaffold", "--wire", "--json").json
    assert found == call(capsys, "show", "scaffold", "--json").json["wire"]


def test_on_another_network(capsys):
    text = call(capsys, "show", "fedavg", "--wire", "--model", "mlp").out
    assert "seen on mlp" in text and "93,610 numbers" in text
    assert "'mpl'" in call(capsys, "show", "fedavg", "--model", "mpl", "--wire").error


def test_settings_change_what_is_seen(capsys):
    found = call(capsys, "show", "fedfa", "--set", "variance=client", "--wire", "--json").json
    assert all(i["of_model"] for i in found["items"] if i["way"] == "up")
    assert "--set" in call(capsys, "show", "fedfa", "--set", "p").error


def test_what_cannot_be_played_is_still_described(capsys):
    """FedFA needs maps, which a perceptron has none of: a warning here, an error for --wire."""
    called = call(capsys, "show", "fedfa", "--model", "mlp", "--json")
    assert called.json["wire"] is None and "warning" in called.err
    assert called.json["parts"][0]["hyperparameters"]
    assert "what crosses" not in call(capsys, "show", "fedfa", "--model", "mlp").out
    assert "maps" in call(capsys, "show", "fedfa", "--model", "mlp", "--wire").error


@pytest.mark.parametrize("name", methods.names())
def test_every_method_can_be_shown(capsys, name):
    called = call(capsys, "show", name)
    assert called.code == 0 and "what crosses" in called.out and not called.err
