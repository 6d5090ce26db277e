"""What files decode to, kept in the cache so that the next run starts at once."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

from fedshift import files
from fedshift.data import cache
from fedshift.errors import BadRun
from fedshift.tree import Tree

_VERSION = 1  # of all decoding; a higher one leaves what earlier versions kept aside


def decoded(what: str, paths: Iterable[Path], read: Callable[[], Tree]) -> Tree:
    """The tensors that `read` makes of some files, read again only when a file has changed.

    Args:
        what: how they were decoded, where one file can be decoded in several ways.
        paths: the files that decide what comes out.
        read: makes the tensors.
    """
    kept = cache.directory() / f"{digest(what, paths)}.safetensors"
    if kept.is_file():
        try:
            return files.load_tensors(kept)[0]
        except BadRun:
            pass  # damaged: decoded and written anew
    tree = read()
    if not tree:
        return tree
    try:
        files.save_tensors(kept, tree, {"what": what})
    except BadRun as error:
        warnings.warn(f"decoded images are not kept for the next time: {error}", stacklevel=2)
    return tree


def digest(what: str, paths: Iterable[Path]) -> str:
    """A name for what comes of files as they are now.

    >>> len(digest("pixels", []))
    32
    """
    facts: list[object] = [_VERSION, what]
    for path in paths:
        stat = path.stat()
        facts.append((str(path.resolve()), stat.st_size, stat.st_mtime_ns))
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()
