"""`fedshift compare`: runs, table, page, and going on."""

import shutil

from tests.cli.calling import QUICK, call
from tests.cli.test_run import KEYS


def test_runs_tables_and_page_of_a_comparison_and_its_continuation(capsys, tmp_path):
    argv = ("compare", "fedavg", "fedprox", *QUICK, "--seeds", 2, "--seed", 4, "--set", "mu=0.5")
    found = call(capsys, *argv, "--json", "--out", tmp_path / "c").json
    assert [(r["method"], r["seed"]) for r in found["runs"]] == [
        *(("fedavg", 4), ("fedavg", 5)),
        *(("fedprox", 4), ("fedprox", 5)),
    ]
    assert all(set(r) == KEYS for r in found["runs"])
    first, second = found["table"]
    assert (first["method"], second["method"]) == ("fedavg", "fedprox")
    both = [r["mean"] for r in found["runs"][:2]]
    assert first["mean"] == sum(both) / 2 and first["std"] >= 0
    assert set(first["per_client"]["fax"]) == {"mean", "std"}
    assert "<table" in (tmp_path / "c" / "report.html").read_text()
    assert (tmp_path / "c" / "table.csv").read_text().startswith("method,")
    assert (tmp_path / "c" / "fedprox" / "seed5" / "report.html").is_file()
    shutil.rmtree(tmp_path / "c" / "fedprox" / "seed5")
    again = call(capsys, "compare", "--resume", tmp_path / "c", "--json").json
    hashes = [[r["weights_sha256"] for r in one["runs"]] for one in (found, again)]
    assert hashes[0] == hashes[1]


def test_people_get_one_table(capsys, tmp_path):
    argv = ("compare", "fedbn", "local", "--rounds", 1, "--steps", 1, "--seeds", 1, "--workers", 1)
    found = call(capsys, *argv)
    assert found.code == 0 and "fedbn" in found.out and "selection last" in found.out
    assert "runs/compare-shifted-digits" in found.out
