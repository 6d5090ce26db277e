"""Tables print the same numbers in every style and never without rule and seeds."""

import csv
import io

import pytest

from fedshift.errors import BadValue, UnknownName
from fedshift.report import Report
from fedshift.report.read import record
from fedshift.report.tables import clients, comparison
from tests.report import made_up


def small():
    def run(method, seed, a, b):
        lines = [
            {"round": 1, "client": "a", "test": a, "val": a},
            {"round": 1, "client": "b_1", "test": b, "val": b},
            {"round": 1, "client": None, "bytes_up": 2**20, "bytes_down": 2**21, "seconds": 0.5},
        ]
        return record({"method": method, "data": "toy", "seed": seed}, lines)

    rows = [("fedavg", 0, 0.5, 0.7), ("fedavg", 1, 0.7, 0.9), ("fed|fa", 0, 0.8, 0.8)]
    return [run(*row) for row in rows]


def test_a_comparison_as_text():
    assert comparison(small(), "best-val").text().splitlines() == [
        "toy, accuracy in %; selection best-val, the round of the best mean validation score, "
        "the earliest of equals; 1-2 seeds, mean ± standard deviation over seeds",
        "",
        "method           mean          worst              a            b_1  MiB up/round  "
        "MiB down/round  s/round",
        "-" * 105,
        "fedavg  70.00 ± 14.14  60.00 ± 14.14  60.00 ± 14.14  80.00 ± 14.14          1.00  "
        "          2.00     0.50",
        "fed|fa          80.00          80.00          80.00          80.00          1.00  "
        "          2.00     0.50",
    ]


def test_one_run_client_by_client():
    text = clients(made_up.run(personal=True, unseen=True)).text()
    assert "selection last, the last scored round: round 12; seed 0" in text
    lines = {line.split("  ")[0]: line.split()[-3:] for line in text.splitlines()[4:]}
    assert list(lines) == ["clinic", "street", "night", "sketch (unseen)", "mean", "spread"]
    seen = [float(lines[c][0]) for c in ("clinic", "street", "night")]
    assert float(lines["mean"][0]) == pytest.approx(sum(seen) / 3, abs=0.011)
    assert float(lines["mean"][2]) == pytest.approx(float(lines["mean"][0]) + 3, abs=0.011)


def test_a_column_in_which_nothing_stands_is_left_out():
    run = record({}, [{"round": 1, "client": "a", "test": 0.5}])
    assert [c.name for c in clients(run).columns] == ["client", "test"]
    assert [c.name for c in comparison([run]).columns] == ["method", "mean", "worst", "a"]


def test_personal_and_unseen_scores_have_columns_and_the_rest_a_dash():
    runs = [made_up.run("fedavg", unseen=True), made_up.run("fedbn", personal=True, unseen=True)]
    table = comparison(runs)
    names = [c.name for c in table.columns]
    assert "sketch (unseen)" in names
    assert table.cells("±")[0][names.index("personal")] == "-"


def test_methods_with_models_of_the_clients_are_told():
    own = record(made_up.config("fedbn", view="personal"), made_up.lines(personal=True))
    table = comparison([made_up.run("fedavg"), own])
    assert [c.name for c in table.columns][:3] == ["method", "view", "mean"]
    assert table.caption.endswith("view personal: each client's own model")
    first, second = table.cells("±")
    assert (first[1], second[1]) == ("global", "personal")
    assert float(second[2]) == pytest.approx(float(first[2]) + 3, abs=0.011)
    alone = clients(own)
    assert "each client's own model" in alone.caption
    assert [c.name for c in alone.columns] == ["client", "test", "validation", "global"]


def test_markdown_marks_the_best_and_escapes():
    lines = comparison(small()).markdown().splitlines()
    assert lines[1] == "| :-- |" + " --: |" * 7
    assert lines[3].startswith("| fed\\|fa | **80.00** | **80.00** | **80.00** | 80.00 |")


def test_csv_is_unrounded():
    rows = list(csv.DictReader(io.StringIO(comparison(small()).csv())))
    assert float(rows[0]["mean"]) == pytest.approx(70) and rows[1]["mean std"] == ""
    assert float(rows[0]["mean std"]) == pytest.approx(14.142135623730951, abs=1e-9)
    assert rows[1]["method"] == "fed|fa" and float(rows[1]["MiB down/round"]) == 2


def test_latex_escapes_and_has_the_caption():
    text = comparison(small()).latex()
    assert r"b\_1" in text and r"accuracy in \%" in text and r"70.00 $\pm$ 14.14" in text
    assert r"fed|fa & \textbf{80.00}" in text and r"\begin{tabular}{lrrrrrrr}" in text


def test_columns_stay_aligned_with_wide_characters():
    run = record({}, [{"round": 1, "client": c, "test": 0.5} for c in ("東京", "paris")])
    text = clients(run).text().splitlines()
    assert text[4] == "東京    50.00" and text[5] == "paris   50.00"


def test_report_chooses_table_rule_and_format(tmp_path):
    report = Report.load(made_up.write(tmp_path / "run"))
    assert report.table().startswith("fedavg on shifted-digits") and report.rule() == "last"
    assert "best-val" in report.table("best-val")
    for ending, start in ((".md", "| client"), (".csv", "client,"), (".tex", r"\begin{table}")):
        report.save(tmp_path / f"out{ending}")
        assert (tmp_path / f"out{ending}").read_text().startswith(start)
    with pytest.raises(BadValue, match=r"\.html"):
        report.save(tmp_path / "out.pdf")
    with pytest.raises(UnknownName, match="latex"):
        report.table(style="latx")
