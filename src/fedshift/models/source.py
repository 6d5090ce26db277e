"""Finding the user's class or function, and calling it with what it takes.

"nets.py:Net" is a file (relative to the working directory), "package.module:Net" an import.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from fedshift.errors import BadModel
from fedshift.models.contract import first_line, hint

# How authors call what we can give: these are filled by name, defaults notwithstanding.
_CLASSES = ("classes", "num_classes", "n_classes", "nclasses", "class_num", "num_labels")
_CHANNELS = ("channels", "in_channels", "in_chans", "input_channels", "num_channels")
_SHAPE = ("shape", "input_shape", "in_shape", "image_shape")


def importable(factory: Callable[..., Any]) -> str:
    """What to call a class or function so that another process can import it, or "".

    >>> importable(nn.Linear)
    'torch.nn.modules.linear:Linear'
    >>> importable(lambda: nn.Linear(2, 2))
    ''
    """
    module, name = getattr(factory, "__module__", ""), getattr(factory, "__qualname__", "")
    if not module or not name or module == "__main__" or module.startswith(_LOADED):
        return ""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is factory else ""


def call_name(factory: Callable[..., Any]) -> str:
    """What messages call a class or function.

    >>> call_name(nn.Linear)
    'Linear'
    """
    return getattr(factory, "__name__", type(factory).__name__)


def load(path: str) -> Callable[..., Any]:
    """The class or function that "nets.py:Net" or "package.module:Net" names.

    >>> load("torch.nn:Linear") is nn.Linear
    True
    """
    where, _, attribute = path.rpartition(":")
    if not where or not attribute:
        raise BadModel(f"model '{path}' is incomplete: give 'nets.py:Net' or 'package.module:Net'")
    module = _from_file(Path(where)) if where.endswith(".py") else _from_import(where)
    if not hasattr(module, attribute):
        own = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise BadModel(f"model '{path}': {where} has no '{attribute}': {hint(attribute, own)}")
    found = getattr(module, attribute)
    if not callable(found):
        raise BadModel(
            f"model '{path}': '{attribute}' is {type(found).__name__}, not a class or function: "
            "name what makes the model"
        )
    factory: Callable[..., Any] = found
    return factory


_LOADED = "fedshift_model_"


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        beside = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, beside, n=2, cutoff=0.5)
        ask = f"did you mean {' or '.join(near)}?" if near else "check the path"
        raise BadModel(f"model file {path} does not exist: {ask}")
    path = path.resolve()
    name = _LOADED + hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadModel(f"model file {path} cannot be imported: give a Python source file")
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    sys.modules[name] = module  # dataclasses and pickles look their module up there
    sys.path.insert(0, str(path.parent))  # a file may import its neighbours, as a script may
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise BadModel(f"model file {path} fails when imported: {first_line(error)}") from error
    finally:
        sys.path[:] = before
    return module


def _from_import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise BadModel(
            f"model module '{name}' cannot be imported ({first_line(error)}): "
            "check the name, or give a file ('nets.py:Net')"
        ) from error


def call(
    factory: Callable[..., Any],
    shape: tuple[int, ...],
    classes: int,
    kwargs: Mapping[str, Any],
    where: str,
) -> nn.Module:
    """Call a class or function with as many of shape and classes as it takes.

    `Net()`, `Net(classes)` and `Net(shape, classes)` work with any names; arguments called classes,
    num_classes, in_channels, channels, shape, input_shape (and their kin) are filled by name, also
    where they have a default. `kwargs` go before both.

    >>> def net(in_channels, num_classes=1000):
    ...     return nn.Linear(in_channels, num_classes)
    >>> call(net, (3, 8, 8), 5, {}, "model 'net'")
    Linear(in_features=3, out_features=5, bias=True)
    """
    args, named = _arguments(factory, shape, classes, kwargs, where)
    try:
        model = factory(*args, **named)
    except Exception as error:
        raise BadModel(
            f"{where} could not be built for samples of shape {shape} and {classes} classes: "
            f"{first_line(error)}; give what it needs a default (in Python: a value in kwargs)"
        ) from error
    if not isinstance(model, nn.Module):
        raise BadModel(f"{where} made {type(model).__name__}, not a torch.nn.Module: return one")
    return model


def _arguments(
    factory: Callable[..., Any],
    shape: tuple[int, ...],
    classes: int,
    kwargs: Mapping[str, Any],
    where: str,
) -> tuple[list[Any], dict[str, Any]]:
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError):  # written in C: it says nothing of its arguments
        return [], dict(kwargs)
    plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for name in kwargs:
        if not takes_any and name not in [p.name for p in plain]:
            raise BadModel(f"{where} takes no '{name}': {hint(name, [p.name for p in plain])}")
    named = {}
    for p in plain:
        known = _by_name(p.name, shape, classes)
        if known is not None and p.name not in kwargs and p.kind is not p.POSITIONAL_ONLY:
            named[p.name] = known
    missing = [p.name for p in plain if p.default is p.empty and p.name not in {**named, **kwargs}]
    if missing and (named or kwargs or len(missing) > 2):
        raise BadModel(
            f"{where} needs '{missing[0]}', which is not known here: give it a default "
            "(in Python: a value in kwargs)"
        )
    by_place: list[Any] = [shape, classes]
    return by_place[2 - len(missing) :], {**named, **kwargs}


def _by_name(name: str, shape: tuple[int, ...], classes: int) -> Any:
    if name in _CLASSES:
        return classes
    if name in _CHANNELS:
        return shape[0]
    return shape if name in _SHAPE else None
