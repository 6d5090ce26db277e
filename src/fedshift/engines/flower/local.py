"""`engine="flower"`: each client of a federation becomes a site of this machine.

The sites are whole: a file with their data, a state folder, messages that are encoded and checked.
Flower's simulator carries them between processes of this machine; `fedshift deploy` does it between
machines.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from fedshift.engines.flower import saved
from fedshift.engines.flower.config import SiteConfig
from fedshift.errors import BadRun
from fedshift.federation import Federation

if TYPE_CHECKING:
    from fedshift.engines.flower.remote import Remote
    from fedshift.run import Run


def start(run: Run) -> Remote:
    """The engine of a run whose sites are processes of this machine."""
    for package in ("flwr", "ray"):
        if importlib.util.find_spec(package) is None:
            raise BadRun(
                f"the flower engine needs {package}, which is not installed: "
                "pip install 'fedshift[flower]'"
            )
    from fedshift.engines.flower.server import remote
    from fedshift.engines.flower.simulation import Simulation

    scratch = None
    if run.out is None:
        scratch = tempfile.TemporaryDirectory(prefix="fedshift-sites-")
    folder = Path(scratch.name) if scratch else run.out / "sites"  # type: ignore[operator]
    sites = prepare(run.federation, folder, str(run.device))
    return remote(run, Simulation(sites, scratch), min_sites=len(sites))


def prepare(federation: Federation, folder: Path, device: str = "cpu") -> list[SiteConfig]:
    """Files for a site of each client, where they are not there yet."""
    found = []
    for name in federation.names:
        home = (folder / name).resolve()
        data = home / "data.safetensors"
        if not data.exists():
            saved.save(data, federation, name)
        site = SiteConfig(name, str(data), str(home / "state"), device=device, home=home)
        found.append(dataclasses.replace(site))
    return found
