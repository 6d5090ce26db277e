"""Which networks there are, found from the files of this package; nothing is imported to list them.

A network is a file here that defines `network(shape, classes)`. Its name on the command line is the
file's with dashes, its description the first line of the file.
"""

from __future__ import annotations

import ast
import functools
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from fedshift.errors import UnknownName

if TYPE_CHECKING:
    from torch import nn


@functools.cache
def _described() -> dict[str, str]:
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        if "network" in functions:
            text = ast.get_docstring(tree) or ""
            found[path.stem.replace("_", "-")] = text.partition("\n")[0]
    return found


def names() -> dict[str, str]:
    """The networks by name, each with a one-line description.

    >>> "small-cnn" in names()
    True
    """
    return dict(_described())


def construct(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A registered network, its weights drawn from torch's global generator.

    >>> type(construct("mlp", (4,), 2)).__name__
    'MLP'
    """
    if name not in _described():
        raise UnknownName("network", name, _described())
    module = importlib.import_module(f"fedshift.models.{name.replace('-', '_')}")
    network: nn.Module = module.network(shape, classes)
    return network
