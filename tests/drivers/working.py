"""The toy run over two workers, with an accident: `python -m tests.drivers.working FOLDER ACCIDENT`

"worker" kills the worker that was given the third trip, "ctrl-c" interrupts the group of this
process as a terminal does, "wait" tells when the third trip has begun and leaves the rest to
whoever started this, "none" does nothing. The last line says how it ended.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from fedshift.engines.loop import Gathered
from fedshift.engines.workers import _Worker
from tests.drivers import toy_run


def accident(kind: str) -> None:
    """Let it happen in the midst of the second round."""
    given, back = itertools.count(1), itertools.count(1)
    send, answer = _Worker.send, _Worker.answer

    def sending(self: _Worker, message: dict[str, Any]) -> None:
        if "client" not in message:
            send(self, message)
            return
        dies = (trip := next(given)) == 3 and kind == "worker"
        if dies:  # before it could answer, however slow this process is
            os.kill(self._process.pid, signal.SIGSTOP)
        send(self, message)
        if dies:
            os.kill(self._process.pid, signal.SIGKILL)
            print("killed the worker of", message["client"], flush=True)
        if trip == 3 and kind == "wait":
            print("training", flush=True)
        if kind == "wait":
            time.sleep(0.05)  # so that the signal finds workers in the midst of a round

    def answering(self: _Worker, whole: Gathered) -> None:
        answer(self, whole)
        if next(back) == 3 and kind == "ctrl-c":
            os.killpg(os.getpgid(0), signal.SIGINT)

    _Worker.send, _Worker.answer = sending, answering  # type: ignore[method-assign]


def main(folder: Path, kind: str) -> None:
    accident(kind)
    try:
        toy_run.run(folder, workers=2).play()
        print("done")
    except BaseException as error:
        print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
