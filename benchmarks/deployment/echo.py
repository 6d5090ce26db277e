"""The least that Flower can do: a client that sends back what it got, and a server that times it.

`python -m benchmarks.deployment.echo server …` takes the place of the guard's program; the client
is loaded by `fedshift.engines.flower.warm`, as a site's own is.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from flwr.app import Message
from flwr.clientapp import ClientApp

from fedshift.engines.flower import codec, guard, serving
from fedshift.engines.flower.apps import GridCarrier, server_app
from fedshift.engines.flower.config import Deployment

echo = ClientApp()
BYTES = "FEDSHIFT_ECHO_BYTES"


@echo.train()
def answer(message: Message, context) -> Message:
    """What came, again."""
    return Message(message.content, reply_to=message)


def client() -> ClientApp:
    """The app of one message."""
    return echo


def play(grid, config) -> None:
    """As many rounds as the deployment's protocol has, with as many bytes as were asked for."""
    told = Deployment.read(Path(os.environ[serving.DEPLOYMENT]))
    status = serving.Status(told)
    carrier = GridCarrier(grid, told.sites, registered=True)
    carrier.gather(len(told.sites), told.wait, status.say)
    data = torch.zeros(int(os.environ[BYTES]), dtype=torch.uint8)
    for number in range(told.protocol["rounds"]):
        packet = codec.encode(codec.Message({"seconds": 0, "round": number}, {"w": data}))
        began = time.perf_counter()
        back, missing = carrier.ask(dict.fromkeys(told.sites, packet), told.seconds)
        assert not missing, missing
        status._now["rounds"].append(
            {
                "stage": "echo",
                "round": number + 1,
                "seconds": time.perf_counter() - began,
                "took_part": list(back),
                "left_out": {},
            }
        )
        status._write()
    status.end("ended", "")


if __name__ == "__main__":
    guard.main(sys.argv.pop(1), server_app(play))
