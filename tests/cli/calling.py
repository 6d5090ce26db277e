"""Calling the command line in this process, and files for it to read."""

import json

import numpy as np

from fedshift.cli import main

QUICK = ("--model", "mlp", "--rounds", "2", "--steps", "1", "--batch", "8", "--workers", "1")


class Called:
    """What a call gave: its code, what it printed, and the JSON on its last line."""

    def __init__(self, code, captured):
        self.code, self.out, self.err = code, captured.out, captured.err

    @property
    def json(self):
        return json.loads(self.out.splitlines()[-1])

    @property
    def error(self):
        """The last line of stderr, which must be an error."""
        assert self.code == 2, (self.code, self.err)
        last = self.err.splitlines()[-1]
        assert last.startswith("fedshift: error: "), self.err
        assert "Traceback" not in self.err
        return last


def call(capsys, *argv):
    capsys.readouterr()
    code = main([str(a) for a in argv])
    return Called(code, capsys.readouterr())


def write_npz(path, clients=("a", "b"), n=24, size=6):
    """A small federation in one file."""
    rng = np.random.default_rng(0)
    arrays = {}
    for client in clients:
        arrays[f"{client}/x"] = rng.integers(0, 255, (n, size, size), dtype=np.uint8)
        arrays[f"{client}/y"] = np.arange(n) % 3
    np.savez(path, **arrays)
    return path
