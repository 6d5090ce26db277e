"""A folder of data sets of the test's own, or the real ones where they are."""

import os
from pathlib import Path

import pytest

_RELATIVE = Path(__file__).parents[4] / "shared" / "data"
_GIVEN = os.environ.get("FEDSHIFT_DATA")  # before any test changes it


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty folder that FEDSHIFT_DATA names."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("FEDSHIFT_DATA", str(folder))
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture(scope="session")
def _shared_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def real(monkeypatch, _shared_cache):
    """The folder of real data sets; without it the test is skipped."""
    folder = Path(_GIVEN) if _GIVEN else _RELATIVE
    if not folder.is_dir():
        pytest.skip("no folder of real data sets: set FEDSHIFT_DATA")
    monkeypatch.setenv("FEDSHIFT_DATA", str(folder))
    monkeypatch.setenv("FEDSHIFT_CACHE", str(_shared_cache))
    return folder
