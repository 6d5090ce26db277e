"""One program with one work, as a process: `python peer.py NAME WORK DEVICE` (see `turns`)."""

from __future__ import annotations

import importlib
import json
import signal
import sys

import torch
from turns import Turns
from works import Work

from fedshift.parent import die_with_parent


def main(name: str, work: str, device: str) -> None:
    die_with_parent(signal.SIGKILL)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    module, _, option = name.partition("-")
    values = json.loads(work)
    values["shape"] = tuple(values["shape"])
    play = importlib.import_module(f"peers.{module}").play
    play(Work(**values), device, Turns(wait), *([option] if option else []))


if __name__ == "__main__":
    main(*sys.argv[1:])
