"""A worker process: `python -m fedshift.engines.worker SOCKET DOWN DATA UP …` (see `workers`).

It builds the same plan as its parent from names and numbers, then plays one trip per message. It
ends when the socket closes or its parent dies, and leaves Ctrl-C to its parent.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import socket
import sys
import traceback
from typing import Any

from fedshift.parent import die_with_parent


def main(handles: list[int]) -> None:
    """Answer messages until the other side hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(signal.SIGKILL)
    line = socket.socket(fileno=handles[0])
    player: Any = None
    # the connection is reset when the other side goes with an answer of ours unread
    with contextlib.suppress(ConnectionResetError), line.makefile("rb") as incoming:
        for text in incoming:
            try:
                message = json.loads(text)
                if player is None:
                    sys.path[:] = message["path"]
                    player = _player(message, handles)
                    answer: dict[str, Any] = {}
                else:
                    answer = player(message)
            except Exception as error:
                answer = _failure(error)
            try:
                line.sendall(json.dumps(answer).encode() + b"\n")
            except OSError:
                return


def _failure(error: Exception) -> dict[str, str]:
    from fedshift.errors import FedshiftError

    known = isinstance(error, FedshiftError)
    text = str(error) if known else traceback.format_exc()
    return {"error": text, "kind": type(error).__name__ if known else ""}


def _player(opening: dict[str, Any], handles: list[int]) -> Any:
    """A function from a job's message to its answer."""
    import torch

    from fedshift import keys, methods, plan
    from fedshift.data.augment import Pipeline
    from fedshift.engines.arena import Arena, from_file
    from fedshift.engines.loop import Loop
    from fedshift.federation import Facts, Samples
    from fedshift.method import Stage, State
    from fedshift.models import ModelSpec
    from fedshift.privacy import Privacy
    from fedshift.protocol import Protocol
    from fedshift.trip import Job

    torch.set_num_threads(1)
    down, data, *ups = (Arena(h) for h in handles[1:])
    turns = itertools.cycle(ups)  # an answer is read before its arena's next turn

    def fetch(where: dict[str, Any]) -> torch.Tensor:
        return from_file(*where["file"]) if "file" in where else data.read(where["place"])

    facts = opening["facts"]
    pipeline = Pipeline.from_config(opening["pipeline"])
    model = ModelSpec.from_dict(opening["network"]).build(
        tuple(facts["shape"]),
        facts["classes"],
        keys.fold(opening["seed"], "model"),
        facts["task"],
    )
    whole = plan.make(
        Facts(facts["task"], facts["classes"], tuple(facts["shape"]), tuple(facts["clients"])),
        pipeline,
        methods.make(opening["method"], opening["settings"]),
        Protocol(**opening["protocol"]),
        model,
        torch.device("cpu"),
        opening["dtype"],
        opening["seed"],
        opening["privacy"] and Privacy(**opening["privacy"]),
    )
    loop = Loop(whole, [Samples(fetch(c["x"]), fetch(c["y"])) for c in opening["data"]])

    def play(message: dict[str, Any]) -> dict[str, Any]:
        trees = {
            name: {n: down.read(place) for n, place in message.pop(name).items()}
            for name in ("payload", "model", "kept")
        }
        job = Job(
            stage=Stage(**message.pop("stage")),
            payload=State(trees["payload"], message.pop("numbers")),
            model=trees["model"],
            kept=trees["kept"],
            **message,
        )
        result = loop.play_one(job)
        named = {
            "model": result.model,
            "extras": result.extras,
            "kept": result.kept[0],
            "losses": result.losses,
        }
        places = iter(next(turns).write([t for tree in named.values() for t in tree.values()]))
        answer: dict[str, Any] = {
            name: {n: next(places) for n in tree} for name, tree in named.items()
        }
        return {**answer, "kinds": result.kinds, "seconds": result.seconds}

    return play


if __name__ == "__main__":
    main([int(h) for h in sys.argv[1:]])
