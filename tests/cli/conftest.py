import pytest

from fedshift.cli import main
from tests.cli.calling import QUICK


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """Runs without --out go to a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Finished runs of one method with a global model and one with personal ones."""
    root = tmp_path_factory.mktemp("runs")
    small = ("--rounds", "1", "--steps", "2", "--batch", "8", "--workers", "1", "--json")
    assert main(["run", "fedavg", *QUICK, "--json", "--out", str(root / "fedavg")]) == 0
    assert main(["run", "fedbn", *small, "--out", str(root / "fedbn")]) == 0
    return root
