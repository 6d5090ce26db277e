"""Run folders are read whole, half written, killed and damaged."""

import subprocess
import sys

import pytest

from fedshift.errors import BadRun
from fedshift.files import write_toml
from fedshift.report.read import find_runs, read_run, record
from tests.report import made_up


def test_a_run_folder_comes_back(tmp_path):
    run = read_run(made_up.write(tmp_path, "fedbn", seed=3, personal=True, unseen=True))
    assert (run.method, run.seed, run.data, run.metric) == (
        "fedbn",
        3,
        "shifted-digits",
        "accuracy",
    )
    assert run.protocol["lr"] == 0.01 and run.versions["torch"] == "2.13.0"
    assert run.clients() == made_up.CLIENTS[:3] and run.clients("unseen") == ("sketch",)
    assert [r.round for r in run.rounds] == list(range(1, 13))
    assert run.scored("test", "personal") and run.per_round("bytes_up") == 4_800_000
    assert set(run.rounds[0].loss) == {"ce", "mixup"}


def test_the_broken_last_line_of_a_killed_run_is_left_out(tmp_path):
    made_up.write(tmp_path)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"round": 13, "cli')
    assert read_run(tmp_path).rounds[-1].round == 12


def test_absent_keys_nulls_other_stages_and_scalar_losses():
    run = record(
        {"method": {"name": "fedfa", "p": 0.5}},
        [
            {"stage": "warm-up", "round": 1, "client": "a", "test": 0.1},
            {"round": 1, "client": "a", "test": None, "bytes_up": 5},
            {"round": 1, "client": "b", "test": 0.5, "bytes_up": 7},
            {"round": 1, "client": None, "loss": 0.25, "left_out": {"c": "too slow"}},
            {"warnings": ["batch is larger than a"]},
            {"warnings": ["batch is larger than a"]},
        ],
    )
    assert run.method == "fedfa" and run.seed is None and len(run.rounds) == 1
    assert run.rounds[0].scores("test") == {"b": 0.5} and run.rounds[0].mean("val") is None
    assert run.rounds[0].bytes_up == 12  # added up where the round's own line is silent
    assert run.rounds[0].loss == {"loss": 0.25} and run.rounds[0].left_out == {"c": "too slow"}
    assert run.warnings == ("batch is larger than a",)


def test_a_repeated_round_counts_once():
    again = [{"round": 1, "client": "a", "test": t} for t in (0.1, 0.2)]
    assert record({}, again).rounds[0].scores("test") == {"a": 0.2}


def test_runs_of_a_comparison_come_in_its_order(tmp_path):
    for method in ("a", "b", "c"):
        made_up.write(tmp_path / method / "seed-0", method)
    (tmp_path / ".tmp-1-0").mkdir()
    made_up.write(tmp_path / ".tmp-1-0", "half")
    assert [r.method for r in find_runs(tmp_path)] == ["a", "b", "c"]
    write_toml(tmp_path / "config.toml", {"methods": ["c", "a", "b"]})
    assert [r.method for r in find_runs(tmp_path)] == ["c", "a", "b"]


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(BadRun, match="holds no runs"):
        find_runs(tmp_path)
    with pytest.raises(BadRun, match="not a run folder"):
        read_run(tmp_path)
    write_toml(tmp_path / "config.toml", made_up.config())
    assert read_run(tmp_path).rounds == ()
    (tmp_path / "metrics.jsonl").write_text('{"round": 1, "client": "a", "test": "high"}\n')
    with pytest.raises(BadRun, match="record 1"):
        read_run(tmp_path)


def test_tables_need_neither_torch_nor_matplotlib():
    code = (
        "import sys, fedshift.report, fedshift.report.html\n"
        "print([m for m in ('torch', 'matplotlib', 'jinja2', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
