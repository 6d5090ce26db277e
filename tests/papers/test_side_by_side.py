"""Rows in processes of their own: which, told how, and what becomes of those that fail or stop."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from fedshift.papers import experiment, side_by_side
from fedshift.papers.reproduce import Plan
from tests.cli.calling import call

CASE = "MNIST, 5% data, 20 active, alpha=1"  # whose title is in that of another case


def plan(out, **changes):
    return Plan(experiment("fedgenp/table4"), out, **{"settings": (CASE,), **changes})


def test_a_part_is_one_row_of_one_block(tmp_path):
    (part,) = side_by_side.parts(plan(tmp_path, methods=("FedAvg",), seeds=2))
    assert part.title == f"{CASE}: FedAvg" and not part.ended
    assert part.words == [
        "reproduce",
        "fedgenp/table4",
        f"--settings={CASE}",
        "--methods=FedAvg",
        f"--out={tmp_path}",
        "--seeds=2",
        "--workers=1",
    ]


def test_a_label_is_the_row_of_that_name_and_a_method_all_its_rows(tmp_path):
    table = experiment("fedbr/table4")
    for wanted, rows in (("FedBR", 1), ("fedbr", 4)):
        assert len(Plan(table, tmp_path, methods=(wanted,)).entries) == rows


@pytest.fixture
def told(monkeypatch):
    """In the place of the command: programs by the label of the row."""

    def tell(**programs):
        monkeypatch.setattr(
            side_by_side,
            "command",
            lambda part: [sys.executable, "-c", programs[part.entry.label]],
        )

    return tell


def test_a_row_that_fails_does_not_stop_the_others(tmp_path, told):
    told(
        FedAvg="import sys; sys.exit('fedshift: error: no luck')",
        FedGen="print('fine')",
    )
    parts = side_by_side.parts(plan(tmp_path, methods=("FedAvg", "FedGen")))
    found = {e.part.entry.label: e for e in side_by_side.play(parts, jobs=1)}
    assert found["FedAvg"].error == "no luck" and not found["FedAvg"].stopped
    assert found["FedGen"].error == "" and not found["FedGen"].stopped


SAVES = """
import pathlib, sys, time
try:
    pathlib.Path({begun!r}).touch()
    time.sleep(60)
except KeyboardInterrupt:
    pathlib.Path({saved!r}).touch()
    sys.exit(130)
"""


def test_when_time_is_up_all_save_and_no_more_begin(tmp_path, told):
    begun, saved = tmp_path / "begun", tmp_path / "saved"
    told(FedAvg=SAVES.format(begun=str(begun), saved=str(saved)), FedGen="print('never')")
    parts = side_by_side.parts(plan(tmp_path, methods=("FedAvg", "FedGen")))
    start = time.monotonic()
    (ended,) = side_by_side.play(parts, jobs=1, seconds=1.0)
    assert ended.stopped and ended.error == "" and begun.exists() and saved.exists()
    assert time.monotonic() - start < 10


def test_whoever_stops_listening_ends_them_all(tmp_path, told):
    begun, saved = tmp_path / "begun", tmp_path / "saved"
    told(FedAvg=SAVES.format(begun=str(begun), saved=str(saved)), FedGen="print('first')")
    parts = side_by_side.parts(plan(tmp_path, methods=("FedAvg", "FedGen")))
    for ended in side_by_side.play(parts, jobs=2):
        assert ended.part.entry.label == "FedGen"
        while not begun.exists():
            time.sleep(0.01)
        break
    assert saved.exists()


ENDS = """
import subprocess
import sys
from pathlib import Path
from fedshift.papers import experiment, side_by_side
from fedshift.papers.reproduce import Plan
side_by_side.command = lambda part: [sys.executable, "-c", {row!r}]
plan = Plan(experiment("fedgenp/table4"), Path({out!r}), ("FedAvg",), ({case!r},), quick=True)
list(side_by_side.play(side_by_side.parts(plan), jobs=1))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only there a process hears of its parent")
def test_rows_save_when_whoever_started_them_is_killed(tmp_path):
    begun, saved = tmp_path / "begun", tmp_path / "saved"
    row = SAVES.format(begun=str(begun), saved=str(saved))
    words = ENDS.format(row=row, out=str(tmp_path / "out"), case=CASE)
    with subprocess.Popen([sys.executable, "-c", words]) as driver:
        until = time.monotonic() + 60
        while not begun.exists() and time.monotonic() < until:
            time.sleep(0.05)
        driver.kill()
    while not saved.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert begun.exists() and saved.exists()


def test_the_command_plays_rows_side_by_side(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    words = ("reproduce", "fedgenp/table4", "--quick", "--settings", CASE, "--out", tmp_path / "r")
    found = call(capsys, *words, "--methods", "FedAvg", "--jobs", "2", "--json")
    assert found.code == 0 and "row 1 of 1" in found.err
    alone = call(capsys, *words[:-1], tmp_path / "a", "--methods", "FedAvg", "--json")
    assert found.json["rows"] == alone.json["rows"]


def test_the_command_names_the_row_that_failed(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    words = ("reproduce", "fedgenp/table4", "--settings", CASE, "--out", tmp_path / "r")
    complaint = call(capsys, *words, "--methods", "FedAvg", "--jobs", "2").error
    assert f"1 of 1 rows failed, the first was {CASE}: FedAvg" in complaint
    assert "FEDSHIFT_DATA" in complaint
