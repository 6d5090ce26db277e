"""How data are named in one text, so that a run can have them again: `photos?size=64&seed=1`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from fedshift.errors import BadValue, UnknownName

_DEFAULTS: dict[str, Any] = {"size": None, "shares": [0.6, 0.15, 0.25], "seed": 0}


def describe(base: str | Path, **options: Any) -> str:
    """The text for a name or path and its options; those at their defaults are left out.

    >>> describe("shifted-digits", seed=3)
    'shifted-digits?seed=3'
    """
    text = base if isinstance(base, str) else str(base.resolve())
    changed = {}
    for option, value in options.items():
        plain = list(value) if isinstance(value, (tuple, list)) else value
        if plain != _DEFAULTS[option]:
            changed[option] = json.dumps(plain, separators=(",", ":"))
    return f"{text}?{urlencode(changed, safe='[],')}" if changed else text


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
        try:
            options[option] = json.loads(value)
        except json.JSONDecodeError:
            raise BadValue(
                f"option {option} of '{text}' is '{value}': give a number, or a list: [48,64]"
            ) from None
    return base, options
