"""Minutes, processes and Flower: these tests run by `make test-deploy`, and never skip there."""

from __future__ import annotations

import os

import pytest

if os.environ.get("FEDSHIFT_TEST_DEPLOY") != "1":
    collect_ignore_glob = ["test_*.py", "turns.py", "rogue.py"]
else:
    collect_ignore_glob = ["turns.py", "rogue.py"]


@pytest.fixture(scope="module")
def field(tmp_path_factory):
    """Three sites and a server on loopback, with TLS and keys."""
    from tests.deploy.field import Field

    made = Field(tmp_path_factory.mktemp("field"))
    yield made
    made.close()
