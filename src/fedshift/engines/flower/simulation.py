"""Sites in Flower's simulator: its processes (Ray) on this machine, no network."""

from __future__ import annotations

import logging
import os
import queue
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from fedshift.engines.flower.quiet import environment

os.environ.update(environment())  # before Flower and Ray are imported, or they call home

from flwr.serverapp import Grid

from fedshift.engines.flower.apps import GridCarrier, client_app, server_app
from fedshift.engines.flower.codec import Packet
from fedshift.engines.flower.config import SiteConfig
from fedshift.engines.flower.site import Site
from fedshift.errors import BadRun

_START = 300.0  # seconds that the simulator may take to start


class Simulation:
    """Carries packets to sites in the simulator, which runs until it is closed.

    Args:
        sites: what they are.
        scratch: a folder that goes when the simulator does.
    """

    def __init__(
        self,
        sites: Sequence[SiteConfig],
        scratch: tempfile.TemporaryDirectory[str] | None = None,
    ) -> None:
        self._names = [s.name for s in sites]
        self._scratch = scratch
        self._grids: queue.Queue[Grid | BaseException] = queue.Queue()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._simulate, args=(list(sites),), daemon=True)
        self._thread.start()
        try:
            grid = self._grids.get(timeout=_START)
        except queue.Empty:
            raise BadRun(f"Flower's simulator did not start within {_START:g} s") from None
        if isinstance(grid, BaseException):
            raise BadRun(f"Flower's simulator did not start: {grid}") from grid
        self._carrier = GridCarrier(grid, self._names, registered=False, patience=_START)
        self._carrier.gather(len(sites), _START, lambda text: None)

    def ask(
        self, packets: Mapping[str, Packet], seconds: float
    ) -> tuple[dict[str, Packet], dict[str, str]]:
        """The answers that came in time, and why the others did not."""
        return self._carrier.ask(packets, seconds)

    def close(self) -> None:
        """End the simulator."""
        self._over.set()
        self._thread.join()
        if self._scratch is not None:
            self._scratch.cleanup()

    def _simulate(self, sites: list[SiteConfig]) -> None:
        from flwr.simulation import run_simulation

        logging.getLogger("flwr").setLevel(logging.ERROR)

        def play(grid: Grid, config: Mapping[str, Any]) -> None:
            self._grids.put(grid)
            self._over.wait()

        def answer(node: Mapping[str, Any], packet: Packet) -> Packet:
            told = sites[int(node["partition-id"])]
            site = Site(told.name, told.federation, told.path(told.state), device=told.device)
            return site.answer(packet)

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it announces its successor at every call
                run_simulation(
                    server_app=server_app(play),
                    client_app=client_app(answer),
                    num_supernodes=len(sites),
                    backend_config={
                        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                        # what sites have to say stands in their answers
                        "init_args": {"logging_level": logging.ERROR, "log_to_driver": False},
                    },
                )
        except BaseException as error:
            self._grids.put(error)
