"""fedshift: one good model over many parties whose data look different.

    import fedshift as fs

    run = fs.Run(fs.data.load("shifted-digits"), fs.methods.FedBN()).play()

Names are loaded when they are first used, so that `fedshift --help` need not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedshift._version import __version__

if TYPE_CHECKING:
    from fedshift import data, keys, methods, models
    from fedshift.comparison import Comparison, compare
    from fedshift.compose import Composed
    from fedshift.engines.flower.secagg.terms import Secure
    from fedshift.errors import FedshiftError
    from fedshift.federation import Client, Facts, Federation, Samples
    from fedshift.hparam import hp
    from fedshift.method import Ctx, Method, Payload, Phase, Report, Scope, Stage, State, Uploads
    from fedshift.models import ModelSpec, adapt
    from fedshift.privacy import Privacy
    from fedshift.protocol import Protocol
    from fedshift.run import Run
    from fedshift.trained import Trained, load

_HOME = {
    "Client": "federation",
    "Comparison": "comparison",
    "Composed": "compose",
    "Ctx": "method",
    "Facts": "federation",
    "Federation": "federation",
    "FedshiftError": "errors",
    "Method": "method",
    "ModelSpec": "models",
    "Payload": "method",
    "Phase": "method",
    "Privacy": "privacy",
    "Protocol": "protocol",
    "Report": "method",
    "Run": "run",
    "Samples": "federation",
    "Scope": "method",
    "Secure": "engines.flower.secagg.terms",
    "Stage": "method",
    "State": "method",
    "Trained": "trained",
    "Uploads": "method",
    "adapt": "models",
    "compare": "comparison",
    "hp": "hparam",
    "load": "trained",
}
_MODULES = ("data", "keys", "methods", "models")

__all__ = [*_HOME, *_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"fedshift.{name}")
    if name in _HOME:
        value = getattr(importlib.import_module(f"fedshift.{_HOME[name]}"), name)
        globals()[name] = value  # a submodule of the same name must not take its place
        return value
    raise AttributeError(f"module 'fedshift' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
