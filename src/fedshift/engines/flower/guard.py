"""Flower's task processes, held to what is installed: `python -m fedshift.engines.flower.guard`.

Flower starts a process for each task and lets it load the code that came with the run. So whoever
reaches the server's port could start code of their own on the server and on every site. These
programs take the place of Flower's: the site's runs the installed ClientApp, the server's the
installed ServerApp, whatever bundle came; tasks of any other kind are refused. Should a future
Flower load its code in another way, they do not start.
"""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from fedshift import files
from fedshift.engines.flower.quiet import environment

PROGRAMS = (
    "flwr-clientapp",
    "flwr-serverapp",
    "flwr-agentapp",
    "flwr-connector",
    "flwr-model",
    "flwr-simulation",
)


MODULE = "fedshift.engines.flower.guard"


def shims(folder: Path, role: str, module: str = MODULE, door: Path | None = None) -> str:
    """A folder of programs for the front of PATH, and that PATH.

    Args:
        folder: where the programs go.
        role: "site" or "server".
        module: what has the app.
        door: the socket of a process that is warm for the tasks (see `warm`).
    """
    python = shlex.quote(sys.executable)
    for program in PROGRAMS:
        wanted = {"site": "flwr-clientapp", "server": "flwr-serverapp"}[role]
        line = "echo 'fedshift: this machine runs no tasks of this kind' >&2; exit 1"
        if program == wanted:
            line = f'exec {python} -m {module} {role} "$@"'
            if door is not None:
                knock = Path(__file__).with_name("knock.py")
                places = " ".join(shlex.quote(str(p)) for p in (knock, door))
                line = f'exec {python} -S {places} {module} "$@"'
        path = folder / program
        files.write_text(path, f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    return os.pathsep.join((str(folder), str(Path(sys.executable).parent), os.environ["PATH"]))


def replace(module: str, name: str, value: Any) -> None:
    """Put our own in the place of what a module of Flower's calls; refuse if it is not there."""
    home = importlib.import_module(module)
    if not hasattr(home, name):
        sys.exit(f"fedshift: this version of flwr has no {module}.{name}: install a tested one")
    setattr(home, name, value)


def main(role: str, app: Any) -> None:
    """Run one task of Flower's with our own app (of a site: with the app that a function makes)."""
    if role == "site":
        made = app()  # before Flower starts threads
        runs = "flwr.supernode.runtime.run_clientapp"
        replace(runs, "get_load_client_app_fn", lambda **_: lambda *_: made)
        replace(runs, "install_from_fab", lambda *_, **__: None)
        importlib.import_module("flwr.supernode.cli.flwr_clientapp").flwr_clientapp()
    else:
        replace("flwr.server.run_serverapp", "load_app", lambda *_: app)
        importlib.import_module("flwr.superlink.cli.flwr_serverapp").flwr_serverapp()


if __name__ == "__main__":
    os.environ.update(environment())
    _role = sys.argv.pop(1)
    from fedshift.engines.flower import serving

    main(_role, serving.client if _role == "site" else serving.server)
else:

    def __getattr__(name: str) -> Any:  # the site's app, for a process that is warm for it
        if name != "client":
            raise AttributeError(name)
        from fedshift.engines.flower import serving

        return serving.client
