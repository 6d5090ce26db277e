"""Data by name: what `--data` and a run folder say, turned into a federation."""

from __future__ import annotations

import ast
import functools
import importlib
from pathlib import Path
from typing import Any

from fedshift.data.sets.catalogue import CATALOGUE
from fedshift.data.source import parse
from fedshift.errors import BadData, BadValue, UnknownName
from fedshift.federation import Federation

_EMBEDDED = {  # module and function
    "shifted-digits": ("digits", "shifted_digits"),
    "shifted-digit-masks": ("digit_masks", "shifted_digit_masks"),
}


@functools.cache
def _described() -> dict[str, str]:
    found = {}
    for name, (module, _) in _EMBEDDED.items():
        text = (Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8")
        first = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
        found[name] = first
    return found


def names() -> dict[str, str]:
    """The federations that have names, each with a one-line description.

    The embedded ones need no files; the others are read from `$FEDSHIFT_DATA`.

    >>> "shifted-digits" in names()
    True
    """
    return _described() | {name: entry.about for name, entry in CATALOGUE.items()}


def load(text: str | Path) -> Federation:
    """A federation by name, or from a folder of images or an .npz file.

    Options may follow a question mark, as in "photos?size=64&seed=1". What comes out has its text
    in `source`, so that a run can have the same data again.

    >>> load("shifted-digits?seed=1").source
    'shifted-digits?seed=1'
    """
    base, options = parse(str(text))
    if not base.strip():
        raise BadData("no data are named: give a federation's name, a folder or an .npz file")
    if base in CATALOGUE:
        return CATALOGUE[base].make(base, options)
    path = Path(base).expanduser()
    if base in _EMBEDDED:
        module, function = _EMBEDDED[base]
        made = getattr(importlib.import_module(f"fedshift.data.{module}"), function)
        return _call(made, {}, options, base)
    if path.suffix.lower() == ".npz":
        from fedshift.data.in_memory import npz

        return _call(npz, {"path": path}, options, base)
    if path.is_dir():
        from fedshift.data.image_folder import folder

        return _call(folder, {"root": path}, options, base)
    if path.exists():
        raise BadData(f"{base} is neither a folder nor an .npz file: give one of these")
    variant = "/" in base.strip("/") and base.partition("/")[0] in CATALOGUE
    if not variant and (len(path.parts) > 1 or base.endswith(("/", "\\"))):
        raise BadData(f"there is no folder or file {base}: check the path")
    raise UnknownName("data (neither a federation, nor a folder or .npz file here)", base, names())


_TAKES = {
    "npz": ("classes", "metric", "name", "pipeline", "seed", "shares", "task"),
    "folder": ("classes", "metric", "name", "pipeline", "seed", "shares", "size", "task"),
}


def _call(source: Any, first: dict[str, Any], options: dict[str, Any], base: str) -> Federation:
    allowed = _TAKES.get(source.__name__, ("seed",))
    for option in options:
        if option not in allowed:
            raise BadValue(f"'{base}' has no option '{option}': it takes {', '.join(allowed)}")
    federation: Federation = source(**first, **options)
    return federation
