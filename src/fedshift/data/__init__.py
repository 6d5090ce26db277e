"""Where data come from: the embedded federation, folders, arrays, datasets; and how to deal them.

Nothing is imported before it is asked for, so that `import fedshift.data` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedshift.data.augment import Pipeline
    from fedshift.data.derive import rotate_clients, subsample
    from fedshift.data.digit_masks import shifted_digit_masks
    from fedshift.data.digits import shifted_digits
    from fedshift.data.image_folder import folder
    from fedshift.data.in_memory import arrays, npz
    from fedshift.data.partition import (
        by_domain,
        deal,
        dirichlet,
        evenly,
        shards,
        split,
    )
    from fedshift.data.registry import load, names
    from fedshift.data.torch_dataset import dataset

__all__ = [
    "Pipeline",
    "arrays",
    "by_domain",
    "dataset",
    "deal",
    "dirichlet",
    "evenly",
    "folder",
    "load",
    "names",
    "npz",
    "rotate_clients",
    "shards",
    "shifted_digit_masks",
    "shifted_digits",
    "split",
    "subsample",
]

# No module is named like a function: importing it would hide the function behind it.
_HOMES = {
    "Pipeline": "augment",
    "arrays": "in_memory",
    "dataset": "torch_dataset",
    "folder": "image_folder",
    "load": "registry",
    "names": "registry",
    "npz": "in_memory",
    "rotate_clients": "derive",
    "shifted_digit_masks": "digit_masks",
    "shifted_digits": "digits",
    "subsample": "derive",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    module = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'partition')}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
