"""The registry of methods: one file each, found by their names; `fedshift.methods` for others.

`fs.methods.FedProx` imports `fedprox.py` when it is first asked for. Packages of third parties
register theirs through the entry-point group `fedshift.methods`.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from fedshift.compose import Composed
from fedshift.errors import BadValue, UnknownName
from fedshift.hparam import check_names, hypers
from fedshift.method import Method

_SOURCES: dict[type[Method], str] = {}  # classes that came from a user's file


def names() -> list[str]:
    """The names of all registered methods, as on the command line."""
    return sorted(_files() | _points())


def _files() -> dict[str, str]:
    found = (m.name for m in pkgutil.iter_modules(__path__))
    return {name.replace("_", "-"): f"{__name__}.{name}" for name in found}


@cache
def _points() -> dict[str, str]:
    return {p.name: p.value for p in entry_points(group="fedshift.methods")}


def method_class(name: str) -> type[Method]:
    """The class of a method: by name, or for one of your own "file.py:Class", "package:Class".

    >>> method_class("fedprox").__name__
    'FedProx'
    """
    if ".py:" in name:
        return _from_file(name)
    if ":" in name:
        return _from_import(name)
    files = _files()
    if name in files:
        module = importlib.import_module(files[name])
        return _class_named(module, name)
    if name in _points():
        path, _, attribute = _points()[name].partition(":")
        return _checked(getattr(importlib.import_module(path), attribute), name)
    raise UnknownName("method", name, names())


def _class_named(module: Any, name: str) -> type[Method]:
    for value in vars(module).values():
        if not isinstance(value, type) or value.__module__ != module.__name__:
            continue
        if issubclass(value, Method) and value.name == name:
            return value
    raise BadValue(f"{module.__name__} has no method named '{name}': set its `name`")


def _from_file(spec: str) -> type[Method]:
    path_text, _, attribute = spec.rpartition(":")
    path = Path(path_text)
    if not path.is_file():
        raise BadValue(f"method file '{path}' does not exist: check the path before the colon")
    module = load_file(path)
    if not hasattr(module, attribute):
        classes = [n for n, v in vars(module).items() if isinstance(v, type)]
        raise UnknownName(f"class in {path}", attribute, classes)
    found = _checked(getattr(module, attribute), spec)
    _SOURCES[found] = f"{path.resolve()}:{attribute}"
    return found


def _from_import(spec: str) -> type[Method]:
    path, _, attribute = spec.partition(":")
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise BadValue(f"method '{spec}' cannot be imported: {error}") from error
    if not hasattr(module, attribute):
        raise UnknownName(f"class in {path}", attribute, list(vars(module)))
    return _checked(getattr(module, attribute), spec)


def spec_of(method: Method) -> str | None:
    """The text from which another process finds the method's class (None: there is none).

    >>> spec_of(method_class("fedavg")())
    'fedavg'
    """
    kind = type(method)
    if kind in _SOURCES:
        return _SOURCES[kind]
    if method.name in names() and method_class(method.name) is kind:
        return method.name
    importable = getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind
    if importable and kind.__module__ != "__main__":
        return f"{kind.__module__}:{kind.__qualname__}"
    return None


def settings_of(method: Composed) -> dict[str, Any]:
    """Every hyperparameter of a method or composition, as `make` takes them.

    >>> settings_of(make("fedprox"))
    {'fedprox.mu': 0.01}
    """
    return {f"{p.name}.{n}": getattr(p, n) for p in method.parts for n in hypers(p)}


def load_file(path: Path) -> Any:
    """Import a Python file of the user's under a name of its own."""
    path = path.resolve()
    name = f"fedshift_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadValue(f"'{path}' cannot be imported: give a Python file")
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    sys.modules[name] = module  # dataclasses look their module up
    sys.path.insert(0, str(path.parent))  # a file may import its neighbours, as a script may
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise BadValue(f"'{path}' fails when imported: {reason}; mend it") from error
    finally:
        sys.path[:] = before
    return module


def _checked(value: Any, spec: str) -> type[Method]:
    """A class that is a method, with a name by which tables and settings can call it."""
    if not (isinstance(value, type) and issubclass(value, Method)):
        raise BadValue(f"'{spec}' is not a method: derive it from fedshift.Method")
    name = vars(value).get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]+", name):
        raise BadValue(
            f"'{spec}' has no name of its own: give it one of letters, digits, - and _, as in "
            'name: ClassVar[str] = "mine"'
        )
    if name in names() and name != spec and method_class(name) is not value:
        raise BadValue(f"'{spec}' is called '{name}', as another method is: give it another name")
    return value


def make(text: str, settings: Mapping[str, Any] | None = None) -> Composed:
    """A method, or several joined by "+", with hyperparameters ("mu", or "fedprox.mu").

    >>> make("fedprox+mixup", {"mu": 0.1}).parts[0].mu
    0.1
    """
    classes = [method_class(part.strip()) for part in split(text)]
    chosen: dict[str, dict[str, Any]] = {c.name: {} for c in classes}
    for key, value in (settings or {}).items():
        owner, name = owner_of(key, classes)
        chosen[owner][name] = value
    return Composed.of(*(c(**chosen[c.name]) for c in classes))


def split(text: str) -> list[str]:
    """The parts of a composition; a path may hold a plus sign only outside of file names.

    >>> split("fedprox+mixup")
    ['fedprox', 'mixup']
    """
    parts = text.split("+")
    if not all(p.strip() for p in parts):
        raise BadValue(
            f"'{text}' leaves a method out: name one, such as fedavg, or several joined by +"
        )
    return parts


def owner_of(key: str, classes: Sequence[type[Method]]) -> tuple[str, str]:
    """The method and the hyperparameter that "fedprox.mu", or "mu" where it is unique, means.

    >>> owner_of("mu", [method_class("fedprox"), method_class("mixup")])
    ('fedprox', 'mu')
    """
    owner, _, name = key.rpartition(".")
    known = {c.name: hypers(c) for c in classes}
    if owner:
        if owner not in known:
            raise UnknownName("method in a setting", owner, known)
        check_names({name: None}, known[owner], owner)
        return owner, name
    owners = [c for c, own in known.items() if name in own]
    if len(owners) > 1:
        both = " or ".join(f"{o}.{name}" for o in owners)
        raise BadValue(f"hyperparameter '{name}' is not unique: write {both}")
    if not owners:
        everything = {n: None for own in known.values() for n in own}
        check_names({name: None}, everything, "+".join(known))
    return owners[0], name


def __getattr__(attribute: str) -> Any:
    flat = attribute.lower()
    for name, path in _files().items():
        if name.replace("-", "") == flat:
            return _class_named(importlib.import_module(path), name)
    raise AttributeError(f"module 'fedshift.methods' has no attribute '{attribute}'")
