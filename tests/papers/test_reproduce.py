"""Playing recipes: on stand-ins, again from their folders, and what is made of the runs."""

from __future__ import annotations

import dataclasses
import math

import pytest

import fedshift as fs
from fedshift import files, together
from fedshift.errors import BadRun, UnknownName
from fedshift.papers import experiment
from fedshift.papers.experiment import Case, Entry, Experiment
from fedshift.papers.readings import read
from fedshift.papers.reproduce import Plan, ended, folder, reproduce
from fedshift.protocol import Protocol
from fedshift.report.read import record
from tests.cli.calling import call
from tests.toys import largest_difference

MACHINE = {"engine": "loop", "workers": 1, "device": "cpu"}
ONE = {"settings": ("5% data, 20 active, alpha=10",), "quick": True, "options": MACHINE}


@pytest.fixture(autouse=True)
def no_data(monkeypatch):
    """Whatever is on this machine: recipes fall back on stand-ins."""
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)


def test_a_recipe_is_played_and_read_again_from_its_folder(tmp_path):
    plan = Plan(experiment("fedgenp/table4"), tmp_path, methods=("FedAvg",), **ONE)
    played = []

    def play(runs, title):
        played.append(title)
        together.play(runs)

    rows = reproduce(plan, play)
    assert played == ["MNIST, 5% data, 20 active, alpha=10: FedAvg seed 0"]
    assert reproduce(plan, play) == rows and len(played) == 1
    both = {row["client"]: row for row in rows}
    assert set(both) == {"global_acc", "personalized_acc"}
    assert both["global_acc"]["paper"] == 92.35 and both["global_acc"]["rerun"] == 91.8
    assert 0 < both["global_acc"]["ours"] < 60 and both["global_acc"]["within"] is False
    assert not plan.complete


def test_a_folder_with_another_run_is_refused(tmp_path):
    first = Plan(experiment("fedgenp/table4"), tmp_path, methods=("FedAvg",), **ONE)
    reproduce(first, lambda runs, title: together.play(runs))
    (config,) = tmp_path.rglob("config.toml")
    config.write_text(config.read_text().replace("lr = 0.01", "lr = 0.5"))
    with pytest.raises(BadRun, match="configured otherwise"):
        reproduce(first, lambda runs, title: pytest.fail("nothing is played"))


def test_what_is_not_in_an_experiment_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(UnknownName, match="FedAvg"):
        Plan(experiment("fedgenp/table4"), tmp_path, methods=("fedavgg",)).entries  # noqa: B018
    with pytest.raises(UnknownName, match="unknown setting"):
        Plan(experiment("fedgenp/table4"), tmp_path, settings=("CIFAR",)).cases  # noqa: B018


def test_complete_is_what_the_recipe_has(tmp_path):
    whole = experiment("fedbr/readings")
    assert Plan(whole, tmp_path).complete
    for less in ({"rounds": 3}, {"quick": True}, {"methods": ("FedBR",)}, {"settings": ("CNN",)}):
        assert not Plan(whole, tmp_path, **less).complete
    assert not Plan(experiment("fedgenp/table4"), tmp_path, seeds=2).complete


def test_clients_left_out_in_turn_have_a_run_each(tmp_path):
    plan = Plan(experiment("fedfa/table6"), tmp_path)
    office = plan.cases[0]
    assert office.left_out == ("amazon", "caltech10", "dslr", "webcam")
    runs = {
        name: scored([{name: (score, "unseen"), "other": (0.1, "seen")}])
        for name, score in zip(office.left_out, (0.5, 0.6, 0.7, 0.8))
    }
    assert read(office, "C", runs, {}) == pytest.approx(60)
    assert read(office, "avg", runs, {}) == pytest.approx(65)


def scored(rounds, view="global"):
    """A record with scores by client, and their roles, round by round."""
    lines = [
        {"stage": "train", "round": k, "client": client, "role": role, "test": score}
        for k, clients in enumerate(rounds, 1)
        for client, (score, role) in clients.items()
    ]
    return record({"method": "m", "seed": 0, "view": view}, lines)


def case(select="last", **columns):
    return Case("d", "s", "mnist", "mlp", Protocol(select=select), columns)


SEEN = [{"a": (x, "seen"), "b": (y, "seen")} for x, y in ((0.2, 0.4), (0.9, 0.5), (0.6, 0.8))]


def test_columns_of_a_run():
    """Last round: a 60, b 80. Of 3 and 1 test samples 3/4 60 + 1/4 80 = 65."""
    runs = {"": scored(SEEN)}
    every = case(m="mean", p="pooled", w="worst", b="client:b", r="rounds:0.65", n="rounds:0.95")
    found = {c: read(every, c, runs, {"a": 3, "b": 1}) for c in every.columns}
    assert math.isnan(found.pop("n"))
    assert found == pytest.approx({"m": 70, "p": 65, "w": 60, "b": 80, "r": 2})


def test_personal_models_count_by_their_clients_test_samples():
    """3/4 of 20 and 1/4 of 40 are 25."""
    lines = [
        {"stage": "train", "round": 1, "client": c, "role": "seen", "test": 0.9, "personal_test": p}
        for c, p in (("a", 0.2), ("b", 0.4))
    ]
    runs = {"": record({"method": "m", "seed": 0, "view": "personal"}, lines)}
    assert read(case(p="personal-pooled"), "p", runs, {"a": 3, "b": 1}) == pytest.approx(25)


def test_the_worst_of_the_best_rounds_is_of_each_round():
    """Six rounds whose worst are 1 to 6 in tens: the five best are 20 to 60, mean 40."""
    rounds = [{"a": (k / 10, "seen"), "b": (0.9, "seen")} for k in (3, 1, 2, 6, 4, 5)]
    assert read(case("top5-test", w="worst"), "w", {"": scored(rounds)}, {}) == pytest.approx(40)


def test_the_command_prints_one_object(capsys, tmp_path):
    words = ("reproduce", "fedgenp/table4", "--quick", "--methods", "FedAvg", "--settings")
    found = call(capsys, *words, "5% data, 20 active, alpha=1", "--json", "--out", tmp_path / "r")
    assert found.code == 0
    told = found.json
    assert told["experiment"] == "fedgenp/table4" and told["complete"] is False
    assert {"method", "setting", "client", "paper", "ours", "std", "within"} <= set(told["rows"][0])
    assert len(told["rows"]) == 4  # alpha=1 and alpha=10, two columns


def test_the_command_prints_a_table_and_a_list(capsys, tmp_path):
    words = ("reproduce", "fedgenp/table4", "--quick", "--methods", "FedAvg", "--settings")
    found = call(capsys, *words, "alpha=0.1", "--out", tmp_path / "r")
    assert "difference" in found.out and "say nothing of the methods" in found.out
    listed = call(capsys, "reproduce", "--list")
    assert "fedfa/table3" in listed.out and "not here: mnist" in listed.out
    rows = call(capsys, "reproduce", "--list", "--json").json
    assert {"name", "about", "runs", "data"} == set(rows[0])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "no experiment given"),
        (("fedfa/table33",), "did you mean fedfa/table3"),
        (("fedgenp/table4", "--seeds", "0"), "--seeds is 0"),
        (("fedgenp/table4",), "is not set"),
        (("fedlsi/table1", "--quick"), "nothing small stands in for it"),
    ],
)
def test_mistakes_are_one_line(capsys, tmp_path, words, complaint):
    assert complaint in call(capsys, "reproduce", *words).error


def test_seeds_that_train_together_come_to_the_same_as_alone(tmp_path):
    """Stacked on the CPU in float64, one of three seeds having been begun before."""
    protocol = Protocol(rounds=2, steps=2, batch=8)
    block = Case("digits", "all", "shifted-digits", "mlp", protocol, {"avg": "mean"})
    table = Experiment("x/1", "x", "1", "t", (block,), (Entry("FedBN", "fedbn"),), seeds=3)
    machine = {"engine": "stacked", "device": "cpu", "dtype": "float64"}
    plan = Plan(table, tmp_path, options=machine)
    titles = []

    def play(runs, title):
        titles.append(title)
        together.play(runs)

    reproduce(dataclasses.replace(plan, seeds=1), play)
    (row,) = reproduce(plan, play)
    assert titles == ["digits, all: FedBN seed 0", "digits, all: FedBN seed 1, 2"]
    means = []
    for seed in range(3):
        data = fs.data.load("shifted-digits")
        alone = fs.Run(data, "fedbn", protocol, "mlp", seed=seed, **machine).play()
        place = folder(plan, block, table.entries[0], seed)
        assert ended(place)
        theirs, _ = files.load_tensors(place / "model.safetensors")
        assert largest_difference(theirs, alone.progress.server.model) < 1e-9
        means.append(100 * alone.lines[-1]["mean"])
    assert row["ours"] == pytest.approx(sum(means) / 3)
