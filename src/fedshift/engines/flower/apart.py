"""A site's answer in a process beside the one that speaks with Flower.

Should it crash, be killed for want of memory, or take too long, the other one is there to say so,
at once and in words. So nobody waits for signs of life that do not come, and the site is free for
the next round. The process is forked before Flower starts threads, answers one packet and ends.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, Pipe
from typing import Any

from fedshift.engines.flower import codec
from fedshift.engines.flower.codec import ECHO, Message, Packet, Piece
from fedshift.parent import die_with_parent

Answer = Callable[[Mapping[str, Any], Packet], Packet]  # to a packet, by a node's configuration
_GRACE = 5.0  # seconds beyond its limit that a process has to end itself


class Apart:
    """Lets another process answer, once.

    Args:
        answer: what it does with a node's configuration and a packet.
    """

    def __init__(self, answer: Answer) -> None:
        self._line, there = Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self._line.close()
            _serve(there, answer)
        there.close()

    def __call__(self, node: Mapping[str, Any], packet: Packet) -> Packet:
        """The answer, or one that says how the process ended without any."""
        head = codec.head_of(packet)
        limit = float(head.get("seconds", 0))
        began = time.monotonic()
        try:
            _send(self._line, packet, dict(node), limit)
            if not self._line.poll(limit + _GRACE if limit > 0 else None):
                os.kill(self._pid, signal.SIGKILL)
            found, (told,) = _receive(self._line)
        except (EOFError, OSError):
            code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            late = 0 < limit <= time.monotonic() - began
            why = f"its process ended: {_late(limit) if late else _reason(code)}"
            echo = {n: head[n] for n in ECHO if n in head}
            return codec.encode(Message({"kind": "failed", "why": why, **echo}))
        os.waitpid(self._pid, 0)
        if found is None:
            raise RuntimeError(told)
        return found


def _serve(line: Connection, answer: Answer) -> None:
    """In the other process: answer what comes, and end."""
    code = 1
    try:
        die_with_parent(signal.SIGKILL)
        packet, (node, limit) = _receive(line)
        assert packet is not None
        if limit > 0:  # it says where it hangs, in the node's log, before it ends itself
            faulthandler.dump_traceback_later(limit, exit=True)
        try:
            _send(line, answer(node, packet), None)
        except Exception as error:
            _send(line, None, f"{type(error).__name__}: {error}")
        code = 0
    except EOFError:
        code = 0  # nobody asks any more
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _send(line: Connection, packet: Packet | None, *more: Any) -> None:
    """A packet (None: there is none), and plain values beside it."""
    pieces = {} if packet is None else packet.pieces
    index = [[name, p.dtype, list(p.shape)] for name, p in pieces.items()]
    head = None if packet is None else packet.head
    line.send_bytes(json.dumps([head, index, more]).encode())
    for piece in pieces.values():
        line.send_bytes(piece.data)


def _receive(line: Connection) -> tuple[Packet | None, list[Any]]:
    """What `_send` has sent: the packet, and the values."""
    head, index, more = json.loads(line.recv_bytes())
    pieces = {n: Piece(dtype, tuple(shape), line.recv_bytes()) for n, dtype, shape in index}
    return None if head is None else Packet(head, pieces), more


def _late(limit: float) -> str:
    return f"it took longer than {limit:g} s"


def _reason(code: int) -> str:
    """How a process has ended.

    >>> _reason(7), _reason(-11)
    ('exit code 7', 'SIGSEGV')
    >>> _reason(-9)
    'SIGKILL, as when memory is short'
    """
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name}, as when memory is short" if name == "SIGKILL" else name
