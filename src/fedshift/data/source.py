"""How data are named in one text, so that a run can have them again: `photos?size=64&seed=1`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from fedshift.data.augment import Pipeline
from fedshift.errors import BadValue, UnknownName

_DEFAULTS: dict[str, Any] = {
    "size": None,
    "shares": [0.6, 0.15, 0.25],
    "seed": 0,
    "pipeline": Pipeline().to_config(),
    "classes": None,
    "name": "",
    "task": "",
    "metric": "",
}
_WORDS = frozenset({"name", "task", "metric"})  # written as they are; all others as JSON


def describe(base: str | Path, **options: Any) -> str:
    """The text for a name or path and its options; those at their defaults are left out.

    >>> describe("shifted-digits", seed=3)
    'shifted-digits?seed=3'
    """
    text = base if isinstance(base, str) else str(base.resolve())
    changed = {}
    for option, value in options.items():
        if option not in _DEFAULTS:
            raise UnknownName("option of data", option, _DEFAULTS)
        plain = _plain(value)
        if plain is not None and plain != _DEFAULTS[option]:
            words = option in _WORDS
            changed[option] = plain if words else json.dumps(plain, separators=(",", ":"))
    return f"{text}?{urlencode(changed, safe='[],')}" if changed else text


def _plain(value: Any) -> Any:
    if isinstance(value, Pipeline):
        return value.to_config()
    return list(value) if isinstance(value, (tuple, list)) else value


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """The name or path, and the options.

    >>> parse("photos?size=64&seed=1")
    ('photos', {'size': 64, 'seed': 1})
    """
    base, mark, query = text.rpartition("?")
    if not mark or Path(text).exists():
        return text, {}
    options = {}
    for option, value in parse_qsl(query, keep_blank_values=True):
        if option not in _DEFAULTS:
            raise UnknownName("option of data", option, _DEFAULTS)
        options[option] = value if option in _WORDS else _number(option, value, text)
    return base, options


def _number(option: str, value: str, text: str) -> Any:
    try:
        read = json.loads(value)
    except json.JSONDecodeError:
        read = None
    if option == "pipeline" and isinstance(read, Mapping):
        return Pipeline.from_config(read)
    fits = {
        "seed": isinstance(read, int) and not isinstance(read, bool),
        "size": isinstance(read, (int, list)) and not isinstance(read, bool),
        "pipeline": False,
    }
    if not fits.get(option, isinstance(read, list)):
        raise BadValue(
            f"option {option} of '{text}' is '{value}': give a number or a list, such as 64 or "
            "[48,64]"
        )
    return read
