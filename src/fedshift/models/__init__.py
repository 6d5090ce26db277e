"""Networks, and how a user's own model becomes one: the public names, loaded when they are used.

The contract is in `contract`, the list of networks in `registry` (which needs no torch, so that
help texts are quick), specs and building in `spec`, foreign modules in `adapter`, trial runs
in `probing`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedshift.models.registry import names

if TYPE_CHECKING:
    from fedshift.models.adapter import Adapted, adapt
    from fedshift.models.contract import Staged, block, check
    from fedshift.models.probing import stackable, unkeyed
    from fedshift.models.spec import ModelSpec, build

__all__ = [
    "Adapted",
    "ModelSpec",
    "Staged",
    "adapt",
    "block",
    "build",
    "check",
    "names",
    "stackable",
    "unkeyed",
]

_HOME = {
    "Adapted": "adapter",
    "adapt": "adapter",
    "Staged": "contract",
    "block": "contract",
    "check": "contract",
    "ModelSpec": "spec",
    "build": "spec",
    "stackable": "probing",
    "unkeyed": "probing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedshift.models' has no attribute '{name}'")
    return getattr(importlib.import_module(f"fedshift.models.{_HOME[name]}"), name)
