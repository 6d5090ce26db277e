"""Selection rules and means over seeds, by hand."""

import pytest

from fedshift.errors import BadRun, UnknownName
from fedshift.protocol import SELECT
from fedshift.report.read import record
from fedshift.report.select import RULES, select
from fedshift.report.summary import notes, summarise
from tests.report import made_up

# round -> (test of a, test of b, val of a, val of b); an eighth round has no scores yet
SCORES = {
    1: (0.10, 0.30, 0.50, 0.50),
    2: (0.50, 0.70, 0.90, 0.70),
    3: (0.90, 0.50, 0.60, 0.60),
    4: (0.20, 0.20, 0.85, 0.75),
    5: (0.30, 0.50, 0.10, 0.10),
    6: (0.40, 0.60, 0.10, 0.10),
    7: (0.60, 0.40, 0.20, 0.20),
}


def run(val=True, **more):
    lines = [{"round": 8, "client": None, "seconds": 1.0}]
    for r, (ta, tb, va, vb) in SCORES.items():
        lines.append({"round": r, "client": "a", "test": ta, "val": va if val else None})
        lines.append({"round": r, "client": "b", "test": tb, "val": vb if val else None})
        lines.append({"round": r, "client": "new", "role": "unseen", "test": 1.0, "val": 1.0})
    return record({"method": "m", **more}, lines)


def test_the_rules_are_the_protocols():
    assert RULES == SELECT


@pytest.mark.parametrize(
    "rule, rounds, a, b",
    [
        ("last", (7,), 0.6, 0.4),
        ("best-val", (2,), 0.5, 0.7),  # round 4 ties; the earliest counts
        ("best-test", (3,), 0.9, 0.5),
        ("top5-test", (2, 3, 5, 6, 7), 2.7 / 5, 2.7 / 5),
    ],
)
def test_rules_by_hand(rule, rounds, a, b):
    s = select(run(), rule)
    assert s.rounds == rounds and s.scores == pytest.approx({"a": a, "b": b})
    assert s.mean == pytest.approx((a + b) / 2) and s.worst == pytest.approx(min(a, b))
    assert s.spread == pytest.approx(abs(a - b) / 2)  # over clients, divided by their number
    assert s.unseen == {"new": 1.0}  # and it moved neither the choice nor the mean


def test_test_scores_do_not_move_an_honest_rule():
    lines = [{"round": r, "client": "a", "test": 0.5, "val": r / 10} for r in (1, 2, 3)]
    lines[0]["test"] = 1.0
    changed = record({}, lines)
    assert select(changed, "best-val").rounds == select(changed, "last").rounds == (3,)


def test_personal_scores_are_chosen_by_personal_validation():
    lines = [
        {"round": 1, "client": "a", "test": 0, "val": 1, "personal_test": 0.3, "personal_val": 0.1},
        {"round": 2, "client": "a", "test": 0, "val": 0, "personal_test": 0.4, "personal_val": 0.2},
    ]
    assert select(record({}, lines), "best-val", "personal").scores == {"a": 0.4}


def test_what_cannot_be_selected_is_refused():
    with pytest.raises(UnknownName, match="did you mean best-val"):
        select(run(), "best-vol")
    with pytest.raises(BadRun, match=r"no validation scores.*take the rule 'last'"):
        select(record({}, [{"round": 1, "client": "a", "test": 1}]), "best-val")
    with pytest.raises(BadRun, match="no test scores yet"):
        select(record({}, []))


def test_seeds_are_summarised_with_the_sample_deviation():
    runs = [
        record({"method": "m", "seed": s}, [{"round": 1, "client": c, "test": t} for c, t in row])
        for s, row in enumerate(
            [[("a", 0.2), ("b", 0.4)], [("a", 0.4), ("b", 0.8)], [("a", 0.6), ("b", 0.6)]]
        )
    ]
    (s,) = summarise(reversed(runs))
    assert s.seeds == (0, 1, 2) and s.mean.mean == pytest.approx(0.5)
    assert s.mean.std == pytest.approx(((0.2**2 + 0.1**2 + 0.1**2) / 2) ** 0.5)
    assert s.scores["a"].std == pytest.approx(0.2) and s.worst.mean == pytest.approx(0.4)
    assert summarise(runs[:1])[0].mean.std is None


def test_runs_of_different_data_are_not_mixed():
    with pytest.raises(BadRun, match="different data"):
        summarise([run(data="a"), run(data="b")])
    with pytest.raises(BadRun, match="different metric"):
        summarise([run(metric="dice"), run()])
    with pytest.raises(BadRun, match="no runs"):
        summarise([])


def test_notes_tell_what_is_unfinished_unequal_or_left_out():
    late = {"round": 2, "client": None, "left_out": {"b": "failed"}}
    runs = [
        record({"method": "x", "seed": 1, "protocol": {"rounds": 5, "lr": 0.1}}, [late]),
        record({"method": "y", "protocol": {"rounds": 5, "lr": 0.2}, "warnings": ["small"]}, []),
        made_up.run("z"),
    ]
    assert notes(runs[2:]) == []
    found = "\n".join(notes(runs[:2]))
    assert "protocol.lr differs between the runs: 0.1, 0.2" in found
    assert "x, seed 1: unfinished, 2 of 5 rounds" in found and "y: small" in found
    assert "b left out of 1 round (failed)" in found
    assert "z: the same seed is there more than once" in notes([runs[2], runs[2]])


def test_without_a_view_the_scores_are_of_the_model_that_the_method_declares():
    lines = [{"round": 1, "client": "a", "test": None, "personal_test": 0.7}]
    chosen = select(record({"view": "personal"}, lines))
    assert (chosen.view, chosen.scores) == ("personal", {"a": 0.7})


def test_an_unseen_client_has_one_model_in_both_views():
    lines = [
        {"round": 1, "client": "a", "personal_test": 0.7},
        {"round": 1, "client": "new", "role": "unseen", "test": 0.4},
    ]
    assert select(record({"view": "personal"}, lines)).unseen == {"new": 0.4}


def test_a_warm_up_that_was_scored_is_no_result():
    lines = [
        {"stage": "warm", "round": 1, "client": "a", "test": 0.9, "bytes_up": 9},
        {"stage": "train", "round": 2, "client": "a", "test": 0.5, "bytes_up": 1},
    ]
    run = record({}, lines)
    assert {select(run, rule).rounds for rule in ("last", "best-test", "top5-test")} == {(2,)}
    assert run.per_round("bytes_up") == 1


def test_what_a_final_tuning_made_is_the_result_and_preparing_rounds_are_none():
    lines = [
        {"stage": "warm", "round": 0, "client": "a", "test": None},
        {"stage": "train", "round": 1, "client": "a", "test": 0.9},
        {"stage": "tune", "round": 2, "client": "a", "test": 0.8},
    ]
    run = record({}, lines)
    assert select(run, "best-test").rounds == (2,)
    assert [r.round for r in run.rounds] == [1, 2]
