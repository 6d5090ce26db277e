"""One number w under quadratic losses, solved by hand and played by the real engines.

A sample is (a, b, c) and its loss a/2 (w - b)^2 + c w. The two clients of most checks are
F1 = 0.5 w^2 and F2 = 1.5 (w - 1)^2, which take 5 full steps of rate 0.1 a round from w = 0: a local
trip brings w to b + q (w - b), with q = (1 - 0.1 a)^5, that is q1 = 0.59049 and q2 = 0.16807.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

import fedshift as fs
from fedshift.federation import Client, Federation, Samples
from fedshift.method import Method
from fedshift.models import Staged

TWO = ((1.0, 0.0, 0.0), (3.0, 1.0, 0.0))
PROTOCOL = fs.Protocol(rounds=1, steps=5, batch=1, lr=0.1)
ENGINES = ("loop", "stacked")
W = "body.weight"


class Number(Staged):
    """The number w, which starts at 0 unless told otherwise; as a network it says w times a."""

    stages = ("body",)

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.body.weight, start)
        self.head = nn.Identity()

    def features(self, x: Tensor) -> Tensor:
        z: Tensor = self.body(x[:, :1])
        return z


@dataclass(frozen=True)
class Quadratic(Method):
    """Puts the quadratic in the place of cross-entropy, for the method it is combined with."""

    name: ClassVar[str] = "quadratic"

    def loss(self, out, y, ctx, net):
        w, (a, b, c) = net.tensors[W].squeeze(), out.x.unbind(1)
        return {"task": (0.5 * a * (w - b).square() + c * w).mean()}


def clients(*losses: tuple[float, float, float], sizes: tuple[int, ...] = ()) -> Federation:
    """Client "a", "b", … for each (a, b, c), with so many samples of it (1 by default)."""
    made = []
    for k, loss in enumerate(losses):
        n = sizes[k] if sizes else 1
        s = Samples(
            torch.tensor([loss] * n, dtype=torch.float64), torch.zeros(n, dtype=torch.int64)
        )
        made.append(Client(chr(ord("a") + k), s, s, s))
    return Federation("quadratics", tuple(made), ("only",))


def run(
    method: Method,
    engine: str,
    rounds: int = 1,
    fed: Federation | None = None,
    start: float = 0.0,
    **protocol,
):
    """A run that has been played."""
    return fs.Run(
        fed or clients(*TWO),
        Quadratic() + method,
        PROTOCOL.replace(rounds=rounds, **protocol),
        lambda: Number(start),
        dtype="float64",
        device="cpu",
        engine=engine,
        workers=1,
        warn=lambda message: None,  # one class is all there is
    ).play()


def w(run: fs.Run) -> float:
    """The global number."""
    return run.progress.server.model[W].item()


def path(method: Method, engine: str, rounds: int, **options) -> list[float]:
    """The global number after each round."""
    return [w(run(method, engine, r, **options)) for r in range(1, rounds + 1)]
