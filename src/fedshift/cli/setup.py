"""From options to the objects of a run: data, model, folders."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from fedshift import data
from fedshift.cli import messages
from fedshift.cli.options import Options
from fedshift.engines.flower.secagg.terms import Secure
from fedshift.errors import BadData, BadRun
from fedshift.federation import Federation
from fedshift.models import ModelSpec
from fedshift.protocol import Protocol
from fedshift.recommended import recommended_model

_LONGEST = 120  # characters of a folder's name; what is written into it needs room too


def federation(options: Options) -> Federation:
    """The data, and what can be said against the options in their light."""
    found = data.load(options.value("data"))
    for name in options.hold_out:
        if name != "each":
            found[name]
    if len(found.classes) == 1:
        messages.warning(f"'{found.name}' has one class alone: there is nothing to tell apart")
    return found


def protocol(options: Options, found: Federation) -> Protocol:
    """How they train."""
    made = options.full_protocol(found.recommended)
    if made.select == "best-val" and not any(len(c.val) for c in found.clients):
        raise BadData(
            f"--select best-val needs validation data, but '{found.name}' has none: give the "
            "clients some, or take --select last"
        )
    return made


def model(options: Options, found: Federation) -> ModelSpec:
    """What they train."""
    name = options.value("model") or recommended_model(found)
    stages = tuple(s.strip() for s in options.value("stages").split(",") if s.strip())
    head = options.value("head").strip()
    return ModelSpec.of(name, stages, head, options.network, options.value("pretrained"))


def machine(options: Options) -> dict[str, Any]:
    """The arguments of a run that say where and how it is computed, and what is hidden in it."""
    names = ("engine", "chunk", "device", "dtype", "checkpoint_every")
    return {
        "workers": options.setup.get("workers"),
        "privacy": options.full_privacy(),
        "secure": Secure() if options.value("secure") else None,
        **{n: options.value(n) for n in names},
    }


def out(options: Options, default: str) -> Path:
    """The folder that was asked for, which must be empty, or a new one under `runs`."""
    asked = options.value("out")
    if asked:
        path = Path(asked)
        if path.is_file():
            raise BadRun(f"--out {path} is a file: give a folder that is new or empty")
        if path.exists() and any(path.iterdir()):
            raise BadRun(
                f"--out {path} holds something already: choose another folder, or continue "
                f"what is in it with --resume {shlex.quote(asked)}"
            )
        return path
    return next(p for p in _candidates(Path("runs") / file_name(default)) if not p.exists())


def _candidates(path: Path) -> Iterator[Path]:
    yield path
    for k in count(2):
        yield path.with_name(f"{path.name}-{k}")


def file_name(text: str) -> str:
    """Text as a name for a folder.

    >>> file_name("fedbn+mixup on a/b")
    'fedbn+mixup-on-a-b'
    """
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.")[:_LONGEST] or "run"
