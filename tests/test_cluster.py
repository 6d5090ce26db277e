"""Comparisons over a Ray cluster of this machine: as if local, also when a process dies."""

from __future__ import annotations

import importlib.util

import pytest

from fedshift import cluster
from fedshift.errors import BadRun
from tests.cli.calling import QUICK, call

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray comes with an extra"
)
# The third round's first trip of seed 1 dies, the first time that it is played.
DIES = '''
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedshift.method import Method, State


@dataclass(frozen=True)
class Dies(Method):
    """FedAvg, whose process dies once."""

    name: ClassVar[str] = "dies"

    def broadcast(self, server, client, round):
        died = Path(__file__).with_name("died")
        if round == 2 and not died.exists():
            died.write_text(str(os.getpid()))
            os._exit(1)
        return State()
'''


@needs_ray
def test_it_gives_what_a_comparison_here_gives_though_a_process_dies(capsys, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(DIES)
    words = ("compare", "fedavg", f"{mine}:Dies", *QUICK, "--rounds", "4", "--seeds", "2")
    words += ("--engine", "loop", "--device", "cpu")
    spread = call(capsys, *words, "--ray", "local", "--out", tmp_path / "spread", "--json")
    assert (tmp_path / "died").exists(), "a process of the cluster has died"
    here = call(capsys, *words, "--out", tmp_path / "here", "--json")

    def told(found):
        return [(r["method"], r["seed"], r["weights_sha256"], r["per_client"]) for r in found]

    assert told(spread.json["runs"]) == told(here.json["runs"])
    assert len(spread.json["runs"]) == 4 and "seed 1 has ended" in spread.err


def test_without_ray_it_is_said(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: None)
    found = call(capsys, "compare", "fedavg", *QUICK, "--ray", "auto", "--out", tmp_path / "c")
    assert "pip install 'fedshift[ray]'" in found.error


@needs_ray
def test_what_other_machines_cannot_build_is_refused(tmp_path):
    import fedshift as fs
    from fedshift.comparison import Contest
    from fedshift.models import ModelSpec
    from tests.toys import ToyNet, federation

    fed = federation()
    one = fs.methods.make("fedavg")
    contest = Contest(
        fed, (one,), fs.Protocol(rounds=1), ModelSpec.of(ToyNet), (0,), tmp_path / "c", {}
    )
    with pytest.raises(BadRun, match="came from Python"):
        cluster.play(contest, "local", print)
