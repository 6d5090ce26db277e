"""Every name leads to a function that takes what the catalogue gives it, and is in the manual."""

import importlib
import inspect
from pathlib import Path

import pytest

from fedshift import data
from fedshift.data.sets.catalogue import CATALOGUE
from fedshift.errors import BadData, UnknownName

PAGE = Path(__file__).parents[3] / "docs" / "data.md"


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_name_leads_to_a_function_that_takes_its_options(name, home):
    entry = CATALOGUE[name]
    module = importlib.import_module(f"fedshift.data.sets.{entry.module}")
    takes = inspect.signature(getattr(module, entry.function)).parameters
    assert {"name", *entry.fixed, *entry.takes} <= set(takes)
    assert not set(entry.fixed) & set(entry.takes)
    with pytest.raises(BadData, match=r"FEDSHIFT_DATA|make the folder|a federation needs"):
        data.load(name)


def test_all_are_listed_and_in_the_manual():
    assert set(CATALOGUE) <= set(data.names())
    page = PAGE.read_text(encoding="utf-8")
    missing = [name for name in CATALOGUE if f"`{name}`" not in page]
    assert not missing


@pytest.mark.parametrize(
    ("text", "near"), [("digits/frau", "digits/fraug"), ("office-caltech", "office-caltech10")]
)
def test_a_name_that_is_nearly_right(text, near):
    with pytest.raises(UnknownName, match=f"did you mean .*{near}"):
        data.load(text)
