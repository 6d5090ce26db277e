"""Tensors that only go up: a client that comes late begins with what was built, on every engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
from torch import nn

from fedshift.method import Method, Scope
from fedshift.run import Run
from tests.engines.flower.sites import serve
from tests.methods.test_battery import PROTOCOL, state
from tests.toys import ToyNet, federation, largest_difference


@dataclass(frozen=True)
class OwnFirst(Method):
    """Convolutions are the client's own, and the server sees them all the same."""

    name: ClassVar[str] = "own-first"

    def scope(self, name: str, module: nn.Module) -> Scope:
        return Scope("up" if name.startswith("conv.") else "both")


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_engines_agree_where_clients_come_late(engine, tmp_path):
    protocol = PROTOCOL.replace(rounds=4, participation=0.34, eval_every=4)
    options = {"dtype": "float64", "device": "cpu", "warn": lambda message: None}
    run = Run(federation(), OwnFirst(), protocol, ToyNet, engine=engine, **options).play()
    came = [line["participants"] for line in run.lines if line["client"] is None]
    assert len({c for (c,) in came}) > 1, "somebody comes after others have sent"
    sites = serve(OwnFirst(), tmp_path, protocol=protocol).play()
    ours, theirs = ({n: t for n, t in state(r).items() if "kept/" not in n} for r in (run, sites))
    assert largest_difference(ours, theirs) < 1e-9
