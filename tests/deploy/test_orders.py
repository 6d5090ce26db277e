"""Flower's commands, several in one process: the first that fails is told, in one line."""

from __future__ import annotations

import os

import pytest

from fedshift import files
from fedshift.engines.flower import certs, deploy, processes
from fedshift.errors import BadRun


@pytest.fixture
def env(tmp_path):
    """Surroundings whose server is not there."""
    certs.pair(tmp_path / "a.key")
    link = {"address": f"127.0.0.1:{processes.free_port()}", "insecure": True}
    table = {"superlink": {"default": "fedshift", "fedshift": link}}
    files.write_toml(tmp_path / "flwr" / "config.toml", table)
    return processes.surroundings(tmp_path / "flwr", os.environ["PATH"])


def test_a_server_that_is_not_there(env, tmp_path):
    words = ["supernode", "register", str(tmp_path / "a.pub"), "fedshift", "--name", "a"]
    with pytest.raises(BadRun, match=r"^flwr supernode register failed: .+") as refused:
        deploy.order([words], env)
    assert "\n" not in str(refused.value) and "Traceback" not in str(refused.value)


def test_a_command_that_there_is_not(env):
    with pytest.raises(BadRun, match=r"^flwr fly away failed: .*fly"):
        deploy.order([["fly", "away"]], env)


def test_a_process_that_does_not_start(env):
    with pytest.raises(BadRun, match=r"^flwr run failed: .*ModuleNotFoundError"):
        deploy.order([["run"]], {**env, "PYTHONHOME": "/nowhere"})
