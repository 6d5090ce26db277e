"""Which networks there are, found from the files of this package; nothing is imported to list them.

A network is a file here that defines `network(shape, classes)`. Its name on the command line is the
file's with dashes, its description the first line of the file. A file with a family of networks
lists them in `NETWORKS`: under each name a description, and the options that `network` gets.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.errors import BadModel, UnknownName

if TYPE_CHECKING:
    from torch import nn


@dataclasses.dataclass(frozen=True)
class _Entry:
    """Where a network is, and what makes it this one of its family."""

    module: str
    about: str
    options: Mapping[str, Any]


@functools.cache
def _found() -> dict[str, _Entry]:
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if not any(isinstance(n, ast.FunctionDef) and n.name == "network" for n in tree.body):
            continue
        about = (ast.get_docstring(tree) or "").partition("\n")[0]
        family = _family(tree) or {path.stem.replace("_", "-"): (about, {})}
        found.update({n: _Entry(path.stem, text, more) for n, (text, more) in family.items()})
    return dict(sorted(found.items()))


def _family(tree: ast.Module) -> dict[str, tuple[str, dict[str, Any]]]:
    """What a file's NETWORKS holds; a literal, so that the file need not be imported."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "NETWORKS":
            family: dict[str, tuple[str, dict[str, Any]]] = ast.literal_eval(node.value or node)
            return family
    return {}


def names() -> dict[str, str]:
    """The networks by name, each with a one-line description.

    >>> "small-cnn" in names()
    True
    """
    return {name: entry.about for name, entry in _found().items()}


def construct(
    name: str, shape: tuple[int, ...], classes: int, options: Mapping[str, Any] | None = None
) -> nn.Module:
    """A registered network, its weights drawn from torch's global generator.

    Args:
        name: as `names` has it.
        shape, classes: of the data.
        options: further arguments, for networks that take some.

    >>> type(construct("mlp", (4,), 2)).__name__
    'MLP'
    """
    if name not in _found():
        raise UnknownName("network", name, _found())
    entry = _found()[name]
    module = importlib.import_module(f"fedshift.models.{entry.module}")
    given = dict(options or {})
    if given:
        _check_options(name, entry, module, given)
    network: nn.Module = module.network(shape, classes, **entry.options, **given)
    return network


def _check_options(name: str, entry: _Entry, module: Any, given: Mapping[str, Any]) -> None:
    """Refuse options that a network does not take, or that its name says already."""
    signature = inspect.signature(module.network)
    known: list[str] = []
    if any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        # `network` passes options on to the class that it returns
        kind = getattr(module, str(signature.return_annotation))
        known = [n for n in inspect.signature(kind).parameters if n not in ("shape", "classes")]
    for option in given:
        if option in entry.options:
            raise BadModel(
                f"network '{name}' has {option} {entry.options[option]!r} by its name: leave "
                f"'{option}' out, or take another network (fedshift list models)"
            )
        if not known:
            raise BadModel(
                f"network '{name}' takes no further arguments, but {option} was given: leave it out"
            )
        if option not in known:
            raise UnknownName(f"argument of network '{name}'", option, known)
