"""`fedshift list`."""

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
