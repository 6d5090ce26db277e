"""A process that has imported everything, and forks for every task: `… warm MODULE SOCKET`.

Flower starts a program for each message, which would import torch and Flower each time: seconds of
work for a message that takes milliseconds. What stands in that program's place (`knock.py`) hands
its arguments over to this process instead, which forks. So every message still has a process of its
own, which ends with it; only the imports are shared. Nothing here computes, starts threads or
touches a GPU before it forks.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import traceback

from fedshift.engines.flower.quiet import environment

_MOST = 1 << 16  # bytes of arguments


def main(module: str, path: str) -> None:
    """Wait for tasks until the process is ended."""
    os.environ.update(environment())
    client = importlib.import_module(module).client
    guard = importlib.import_module("fedshift.engines.flower.guard")
    importlib.import_module("flwr.supernode.cli.flwr_clientapp")
    importlib.import_module("flwr.supernode.runtime.run_clientapp")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks are not waited for
    with socket.socket(socket.AF_UNIX) as door:
        before = os.umask(0o077)
        door.bind(path)
        os.umask(before)
        door.listen()
        while True:
            line, _ = door.accept()
            if os.fork() == 0:
                door.close()
                _task(line, guard, client)
            line.close()


def _task(line: socket.socket, guard: object, client: object) -> None:
    """In the fork: play one task, say with which code it ended, and end."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        text, handles, _, _ = socket.recv_fds(line, _MOST, 2)
        for handle, place in zip(handles, (1, 2), strict=True):
            os.dup2(handle, place)
        sys.argv = ["flwr-clientapp", *json.loads(text)]
        guard.main("site", client)  # type: ignore[attr-defined]
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        line.sendall(bytes([code & 255]))
        os._exit(code & 255)


if __name__ == "__main__":
    main(*sys.argv[1:])
