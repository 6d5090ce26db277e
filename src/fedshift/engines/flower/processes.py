"""Starting Flower's programs so that they end with us, log to a file and do not call home."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedshift.engines.flower.quiet import environment
from fedshift.errors import BadRun
from fedshift.parent import die_with_parent

_LONGEST = 90  # letters of a socket's path, of which systems allow about 100
_PATIENCE = 10.0  # seconds that programs get to end by themselves


def needed() -> None:
    """Refuse to go on without Flower."""
    if importlib.util.find_spec("flwr") is None:
        raise BadRun("this needs flwr, which is not installed: pip install 'fedshift[flower]'")


def program(name: str) -> str:
    """The path of one of Flower's programs in this environment."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise BadRun(f"{path} does not exist: pip install 'fedshift[flower]' into this environment")
    return str(path)


def surroundings(home: Path, path: str, **more: str) -> dict[str, str]:
    """The environment of Flower's programs: a home of their own, no calls home, ours in front."""
    return {
        **os.environ,
        **environment(),
        "FLWR_HOME": str(home),
        "PATH": path,
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        **more,
    }


@contextmanager
def started(
    command: Sequence[str], env: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A program with its helpers, which ends when the block does, or this process dies."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            list(command),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a program and its helpers: politely, then not."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_PATIENCE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def socket_path(folder: Path) -> Path:
    """Where a socket can be: its path may have few letters, so not always in the folder."""
    path = folder / "warm.socket"
    if len(str(path)) > _LONGEST:
        path = Path(tempfile.mkdtemp(prefix="fedshift-")) / "warm.socket"
    folder.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return path


def free_port() -> int:
    """A port of loopback that nobody uses now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@contextmanager
def stopping_on_signal() -> Iterator[None]:
    """SIGTERM ends what is running as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt("stopped")
