"""Where sets are looked for, and what is said when they are not there."""

import pytest

from fedshift import data
from fedshift.data.sets import place
from fedshift.errors import BadData


def test_without_the_variable_the_error_names_it_and_what_to_put_where(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadData, match=r"FEDSHIFT_DATA is not set.*holds pacs/ with art_painting/"):
        data.load("pacs")
    (tmp_path / "pacs").mkdir()
    with pytest.raises(BadData, match=r"the folder pacs here is \./pacs"):
        data.load("pacs")


def test_an_absent_set_is_named_with_its_folder(home):
    with pytest.raises(BadData, match=rf"make the folder {home}/cifar-10 with data_batch_1\.bin"):
        data.load("cifar-10")


def test_a_variable_that_names_no_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "gone"))
    with pytest.raises(BadData, match="gone, which is no folder"):
        data.load("mnist")


@pytest.mark.parametrize("spelt", ["office-home", "Office_Home", "OfficeHome", "OfficeHomeDataset"])
def test_folders_are_found_however_they_are_spelt(home, spelt):
    (home / spelt).mkdir()
    assert place.find("office-home", "OfficeHomeDataset") == home / spelt


def test_an_exact_name_goes_before_a_similar_one(home):
    (home / "PACS").mkdir()
    (home / "pacs").mkdir()
    assert place.find("pacs") == home / "pacs"


def test_counts_that_differ_from_the_published_are_told():
    with pytest.warns(
        UserWarning, match="'x' here is not the published set.*3 of 4 train, no test"
    ):
        place.compare_counts("'x'", {"train": 3}, {"train": 4, "test": 1})
    place.compare_counts("'x'", {"train": 4, "test": 1}, {"train": 4, "test": 1})
