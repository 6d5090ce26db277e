"""What a site keeps between rounds, on its disk: one file for the state after each round.

The server says after which round the state is that counts, so a round whose answer was lost, late
or refused can be taken back. Older files go once the server says that nothing needs them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from fedshift import files
from fedshift.errors import BadRun
from fedshift.tree import Tree

_RUN = re.compile(r"[0-9a-f]{8,64}")


class Shelf:
    """The states of one run at one site.

    >>> import tempfile
    >>> shelf = Shelf(Path(tempfile.mkdtemp()), "0123abcd")
    >>> shelf.load(3) is None
    True
    >>> shelf.save(3, {})
    >>> shelf.load(3)
    {}
    """

    def __init__(self, state: Path, run: str) -> None:
        if not _RUN.fullmatch(run):
            raise BadRun(f"'{run[:80]}' is no run's identity: the server is not fedshift's")
        self.folder = state / run
        self._kept = self.folder / "kept"

    def load(self, version: int) -> Tree | None:
        """The state after so many rounds (None: it is not here, or damaged)."""
        path = self._path(version)
        if not path.exists():
            return None
        try:
            return files.load_tensors(path)[0]
        except BadRun:
            return None

    def save(self, version: int, kept: Tree) -> None:
        """Store the state after so many rounds, whole or not at all."""
        files.save_tensors(self._path(version), kept, {"rounds": version})

    def hold(self, versions: Collection[int]) -> None:
        """Delete all states but these."""
        if self._kept.is_dir():
            files.sweep(self._kept)
            for path in self._kept.glob("*.safetensors"):
                if path.stem.isdigit() and int(path.stem) not in versions:
                    path.unlink(missing_ok=True)

    def _path(self, version: int) -> Path:
        return self._kept / f"{version:06d}.safetensors"
