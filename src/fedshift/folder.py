"""A run's folder: its configuration, the lines of its rounds, and the models that it gave.

`config.toml`, `metrics.jsonl`, `model.safetensors`, and `personal/` with what each client keeps.
Checkpoints, beside them, are `fedshift.checkpoint`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from fedshift import files
from fedshift.errors import BadRun
from fedshift.lines import Line
from fedshift.tree import Tree

_LEFT = re.compile(r"\.tmp-\d+-\d+")  # names of `fedshift.files` for what is not whole yet


class Folder:
    """The folder of one run.

    Args:
        path: where it is, or will be.

    >>> import tempfile
    >>> folder = Folder(Path(tempfile.mkdtemp()) / "run")
    >>> folder.open({"seed": 0})
    >>> folder.add([{"round": 1}])
    >>> folder.cut(folder.size)
    [{'round': 1}]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opened = False

    def open(self, config: Line) -> None:
        """Make it, with the run's configuration; what holds something already is refused."""
        if _occupied(self.path):
            raise BadRun(
                f"'{self.path}' holds something already: choose another folder with --out, or "
                f"continue a run that is in it with: {files.resuming(self.path)}"
            )
        files.write_toml(self.path / "config.toml", config)
        self.opened = True

    def reopen(self) -> None:
        """Go on in it: what writers left that were killed goes."""
        for place in (self.path, self.path / "personal"):
            files.sweep(place)
        self.opened = True

    @property
    def fingerprint(self) -> str:
        """Of the configuration, by which checkpoints know their run."""
        return sha256(files.read_text(self.path / "config.toml").encode()).hexdigest()

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie."""
        return self.path / "checkpoint"

    # -- the lines of rounds -------------------------------------------------------------------

    @property
    def _lines(self) -> Path:
        return self.path / "metrics.jsonl"

    def add(self, found: list[Line]) -> None:
        """Write the lines of a round behind those of the others."""
        files.append_lines(self._lines, found)

    @property
    def size(self) -> int:
        """Bytes of all lines."""
        return self._lines.stat().st_size if self._lines.exists() else 0

    def cut(self, size: int) -> list[Line]:
        """Drop the lines behind so many bytes, of rounds that do not count; those that are left."""
        if self.size < size:
            raise BadRun(
                f"{self._lines} is missing or shorter than its checkpoint says: restore it, or "
                "start anew in another folder"
            )
        if self.size > size:
            files.cut(self._lines, size)
        return files.read_lines(self._lines, whole=True) if self._lines.exists() else []

    # -- the models ----------------------------------------------------------------------------

    def finish(self, model: Tree, personal: Mapping[str, Tree], about: Mapping[str, str]) -> None:
        """Write the selected model and what clients keep; `about` stands in the files."""
        files.save_tensors(self.path / "model.safetensors", model, dict(about))
        for client, own in personal.items():
            if own:
                place = self.path / "personal" / f"{client}.safetensors"
                files.save_tensors(place, own, {**about, "client": client})


def _occupied(folder: Path) -> bool:
    """Whether a folder holds anything but what a writer left that was killed at its beginning."""
    if not folder.exists():
        return False
    if not folder.is_dir() or any(not _LEFT.fullmatch(p.name) for p in folder.iterdir()):
        return True
    files.sweep(folder)
    return False
