"""Hyperparameters, declared once.

`p: float = hp(0.5, "chance that a layer augments in a step", low=0, high=1, off=0.0)` in a frozen
dataclass gives the default, the sentence that the command line and the docs print, the bounds that
construction checks, and the value at which the method is FedAvg.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from fedshift.errors import BadValue, UnknownName

_MISSING = object()
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Hyper:
    """What is known of one hyperparameter."""

    name: str
    default: Any
    meaning: str
    kind: type
    low: float | None = None
    high: float | None = None
    choices: tuple[Any, ...] | None = None
    off: Any = None
    has_off: bool = False
    quick: Any = None  # None: the default is quick enough

    def bounds(self) -> str:
        """The allowed values in words, as help texts print them.

        >>> Hyper("p", 0.5, "a chance", float, low=0, high=1).bounds()
        '0 to 1'
        """
        if self.choices is not None:
            return " | ".join(str(c) for c in self.choices)
        if self.low is not None and self.high is not None:
            return f"{self.low:g} to {self.high:g}"
        if self.low is not None:
            return f"at least {self.low:g}"
        if self.high is not None:
            return f"at most {self.high:g}"
        return self.kind.__name__

    def check(self, value: Any, owner: str) -> Any:
        """The value as this hyperparameter's type, or an error that says what is allowed."""
        where = f"{owner}.{self.name}"
        try:
            value = _convert(value, self.kind)
        except (TypeError, ValueError):
            raise BadValue(
                f"{where} is {value!r}: give {_article(self.kind)} ({self.bounds()})"
            ) from None
        if self.choices is not None and value not in self.choices:
            raise BadValue(f"{where} is {value!r}: choose from {self.bounds()}")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            low, high = self.low, self.high
            outside = (low is not None and value < low) or (high is not None and value > high)
            if not math.isfinite(value) or outside:
                raise BadValue(f"{where} is {value:g}: allowed is {self.bounds()}")
        return value


def _article(kind: type) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
    return names.get(kind, kind.__name__)


def _convert(value: Any, kind: type) -> Any:
    if kind is bool:
        if isinstance(value, str):
            words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
            return words[value.lower()] if value.lower() in words else int("not a bool")
        if value not in (0, 1):
            raise ValueError
        return bool(value)
    if isinstance(value, bool) and kind in (int, float):
        raise TypeError
    if kind is int and isinstance(value, float) and not value.is_integer():
        raise ValueError
    return kind(value)


def hp(
    default: T,
    meaning: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[Any, ...] | None = None,
    off: Any = _MISSING,
    quick: Any = _MISSING,
) -> T:
    """Declare a hyperparameter in a frozen dataclass.

    Args:
        default: the value used when none is given; its type is the hyperparameter's type.
        meaning: one sentence for help texts and docs, with the paper's symbol.
        low, high, choices: what is allowed.
        off: the value at which this hyperparameter has no effect; a method whose hyperparameters
            are all at their `off` values must be FedAvg, and a test checks it.
        quick: a value that lets the method finish in seconds on a CPU, where the default does not.
    """
    meta: dict[str, Any] = {"meaning": meaning, "low": low, "high": high, "choices": choices}
    if off is not _MISSING:
        meta["off"] = off
    if quick is not _MISSING:
        meta["quick"] = quick
    field: T = dataclasses.field(default=default, metadata={"hp": meta})
    return field


def hypers(owner: Any) -> dict[str, Hyper]:
    """The hyperparameters of a method class or object, by name, in the order declared."""
    found = {}
    for field in dataclasses.fields(owner):
        meta = field.metadata.get("hp")
        if meta is None:
            continue
        found[field.name] = Hyper(
            name=field.name,
            default=field.default,
            meaning=meta["meaning"],
            kind=type(field.default),
            low=meta["low"],
            high=meta["high"],
            choices=meta["choices"],
            off=meta.get("off"),
            has_off="off" in meta,
            quick=meta.get("quick"),
        )
    return found


def check_fields(obj: Any, owner: str) -> None:
    """Validate and convert the hyperparameters of a frozen dataclass in place (`__post_init__`)."""
    for name, hyper in hypers(obj).items():
        object.__setattr__(obj, name, hyper.check(getattr(obj, name), owner))


def check_names(given: Mapping[str, Any], known: Mapping[str, Any], owner: str) -> None:
    """Refuse names that do not exist, offering the nearest."""
    for name in given:
        if name not in known:
            raise UnknownName(f"hyperparameter of {owner}", name, known)
