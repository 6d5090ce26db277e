"""Where the files of a data set lie, and what to say when they do not."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path

from fedshift.errors import BadData

VARIABLE = "FEDSHIFT_DATA"


def plain(name: str) -> str:
    """A name as it is compared: publishers and mirrors differ in case, dashes and underscores.

    >>> plain("Office-Home") == plain("office_home") == plain("OfficeHome")
    True
    """
    return re.sub(r"[\s_.-]+", "", name).casefold()


def find(name: str, *others: str) -> Path | None:
    """The folder of a set under $FEDSHIFT_DATA, by its name or by others that publishers use."""
    chosen = os.environ.get(VARIABLE)
    if not chosen:
        return None
    root = Path(chosen).expanduser()
    if not root.is_dir():
        raise BadData(f"{VARIABLE} is {chosen}, which is no folder: set it to where data sets lie")
    return next(filter(None, (child(root, n) for n in (name, *others))), None)


def need(name: str, contents: str, *others: str) -> Path:
    """The folder of a set, or an error that says what to put where."""
    return find(name, *others) or _absent(name, contents)


def _absent(name: str, contents: str) -> Path:
    chosen = os.environ.get(VARIABLE)
    if chosen:
        raise BadData(
            f"'{name}' is not there: make the folder {Path(chosen) / name} with {contents}"
        )
    here = f" (the folder {name} here is ./{name})" if Path(name).is_dir() else ""
    raise BadData(
        f"'{name}' is read from ${VARIABLE}/{name}, but {VARIABLE} is not set{here}: set it to a "
        f"folder that holds {name}/ with {contents}"
    )


def nothing(name: str, folder: Path, contents: str) -> BadData:
    """The error for a folder that is there and holds none of a set's files."""
    return BadData(f"{folder} holds nothing of '{name}': put there {contents}")


def child(folder: Path, name: str) -> Path | None:
    """The folder of that name inside another, however its name is spelt.

    >>> child(Path("."), "no such folder") is None
    True
    """
    exact = folder / name
    if exact.is_dir():
        return exact
    alike = (p for p in folders(folder) if plain(p.name) == plain(name))
    return next(alike, None)


def folders(place: Path) -> list[Path]:
    """The folders in a folder that are not hidden, in the order of their names."""
    return [p for p in inside(place) if p.is_dir()]


def inside(place: Path) -> list[Path]:
    """What lies in a folder and is not hidden, in the order of the names."""
    try:
        return sorted(p for p in place.iterdir() if not p.name.startswith("."))
    except OSError as error:
        raise BadData(f"cannot list {place} ({error.strerror}): check its permissions") from None


def compare_counts(what: str, found: Mapping[str, int], published: Mapping[str, int]) -> None:
    """Warn where a set has not the published numbers of images: its scores are not comparable."""
    differ = [
        f"{found[part]} of {number} {part}"
        for part, number in published.items()
        if found.get(part, number) != number
    ]
    missing = [part for part in published if part not in found]
    if differ or missing:
        said = [*differ, *(f"no {part}" for part in missing)]
        warnings.warn(
            f"{what} here is not the published set (images: {', '.join(said)}); scores cannot be "
            "compared with published ones",
            stacklevel=2,
        )
