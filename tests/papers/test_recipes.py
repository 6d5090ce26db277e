"""Every recipe names what exists: data, networks, methods, hyperparameters, published rows."""

from __future__ import annotations

import pytest

from fedshift import methods, models
from fedshift.data.sets.catalogue import CATALOGUE
from fedshift.data.sets.there import FOLDERS
from fedshift.errors import BadValue, UnknownName
from fedshift.papers import experiment, experiments
from fedshift.papers.experiment import Case, Entry
from fedshift.papers.reproduce import Plan, made
from fedshift.protocol import Protocol

ALL = experiments()
# Rows that the recipes add to the papers' own: other readings of a method, and of a setting.
OURS = {
    ("fedfa/table3", "FedFA^l"),
    ("fedfa/table3", "FedFA^l (released)"),
    ("fedfa/table6", "FedDG"),  # published for the prostate alone
}


def blocks():
    for wanted in ALL.values():
        for case in wanted.cases:
            for entry in wanted.entries:
                if not case.only or entry.label in case.only:
                    yield wanted, case, entry


@pytest.mark.parametrize("name", ALL)
def test_everything_that_a_recipe_names_exists(name):
    wanted = ALL[name]
    assert wanted.seeds >= 1 and wanted.title and wanted.cases and wanted.entries
    assert len({e.label for e in wanted.entries}) == len(wanted.entries)
    assert len({c.title for c in wanted.cases}) == len(wanted.cases)
    for case in wanted.cases:
        assert case.data in CATALOGUE, case.data
        assert case.model in models.names(), case.model
    for entry in wanted.entries:
        assert bool(entry.method) != bool(entry.why), (
            f"{entry.label}: a method, or why there is none"
        )
        assert not entry.model or entry.model in models.names()


@pytest.mark.parametrize("name", ALL)
def test_its_methods_take_its_settings(name, tmp_path):
    plan = Plan(ALL[name], tmp_path)
    quick = Plan(ALL[name], tmp_path, quick=True)
    for case in ALL[name].cases:
        for entry in plan.entries:
            method = made(plan, case, entry)
            found = methods.settings_of(method)
            wanted = {n: v for n, v in case.settings.items() if n in found} | dict(entry.settings)
            assert {n: found[n] for n in wanted} == wanted
            made(quick, case, entry)
            case.protocol.replace(**entry.protocol)
        parts = {p for e in plan.entries for p in methods.split(e.method)}
        used = {n.partition(".")[0] for n in case.settings}
        assert used <= {methods.method_class(p).name for p in parts}, "settings of nobody"


def test_every_row_has_published_numbers_but_for_those_that_are_ours():
    without = {
        (wanted.name, entry.label)
        for wanted, case, entry in blocks()
        if not wanted.published(case, entry)
    }
    assert {(n, e) for n, e in without if n != "fedbr/readings"} == OURS


def test_every_published_column_is_read():
    """Where a block prints more than its recipe reads, it must be known: no column is forgotten."""
    left = set()
    for wanted, case, entry in blocks():
        for column in wanted.published(case, entry):
            if column not in case.columns:
                left.add((wanted.name, column))
    assert left == {
        *(("fedbr/table13", c) for c in ("rounds_to_FedAvg_final",)),
        *(("fedbr/table14", c) for c in ("rounds_to_FedAvg_final",)),
        *(("fraug/table3", c) for c in "HVRU"),
        *(("fraug/table6", f"sigma={s}") for s in (0.01, 0.1, 1.0)),
    }


def test_published_numbers_are_those_of_the_papers():
    three = ALL["fedfa/table3"]
    fedavg = next(e for e in three.entries if e.label == "FedAvg")
    office = three.published(three.cases[0], fedavg)
    assert {c: v for c, (v, _) in office.items()} == {
        "A": 84.4,
        "C": 66.7,
        "D": 75.0,
        "W": 88.1,
        "avg": 78.5,
    }
    four = ALL["fedgenp/table4"]
    capped = next(e for e in four.entries if e.label == "FedGenP (capped)")
    assert four.published(four.cases[0], capped)["global_acc"] == (95.41, 0.40)


def test_folders_are_looked_for_under_names_of_the_catalogue():
    assert {name.partition("/")[0] for name in CATALOGUE} >= set(FOLDERS)


def test_a_name_that_is_none_is_answered_with_the_nearest():
    with pytest.raises(UnknownName, match="did you mean fedfa/table3"):
        experiment("fedfa/tabel3")


def test_a_column_that_reads_nothing_is_refused():
    with pytest.raises(BadValue, match="column 'avg' reads 'median'"):
        Case("d", "s", "mnist", "mlp", Protocol(), {"avg": "median"})
    assert Entry("FedGenP (capped)", "fedgenp", published="FedGenP").row == "FedGenP"
