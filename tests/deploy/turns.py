"""A server that plays all cases in turn: `python -m tests.deploy.turns server …`."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

from fedshift import methods
from fedshift.engines.flower import guard, serving
from fedshift.engines.flower.apps import GridCarrier, server_app
from fedshift.engines.flower.config import Deployment
from tests.deploy.cases import CASES, PROTOCOL
from tests.methods.test_battery import make


def play(grid, config) -> None:
    """Every case as a run of its own, over the same sites."""
    told = Deployment.read(Path(os.environ[serving.DEPLOYMENT]))
    status = serving.Status(told)
    try:
        carrier = GridCarrier(grid, told.sites, registered=True)
        carrier.gather(len(told.sites), told.wait, status.say)
        federation = serving.enrol(told, carrier)
        for name in CASES:
            method = make(name)
            one = dataclasses.replace(
                told,
                method=name,
                set=methods.settings_of(method),
                protocol=dataclasses.asdict(PROTOCOL),
                out=str(told.folder / "cases" / name),
            )
            serving.server_run(one, federation, carrier, status).play(status.round)
            status.say(f"{name} is done")
        status.end("ended", "all")
    except BaseException as error:
        status.end("stopped", f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    guard.main(sys.argv.pop(1), server_app(play))
