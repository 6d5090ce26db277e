"""The protocol: everything about training that is the same for every method of a comparison."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from fedshift.errors import BadValue
from fedshift.hparam import check_fields, hp

SELECT = ("last", "best-val", "best-test", "top5-test")


@dataclasses.dataclass(frozen=True)
class Protocol:
    """Rounds, local work, optimizer, participation, weighting, evaluation.

    >>> Protocol(rounds=10, steps=5).local_work(n=100)
    5
    >>> Protocol(epochs=2, batch=32).local_work(n=100)
    8
    """

    rounds: int = hp(20, "rounds of training", low=1)
    epochs: int = hp(1, "local epochs per round, each of ceil(n / batch) full batches", low=1)
    steps: int = hp(0, "local steps per round instead of epochs (0: epochs decide)", low=0)
    batch: int = hp(32, "samples per step", low=1)
    lr: float = hp(0.01, "local learning rate (eta)", low=0)
    optimizer: str = hp("sgd", "local optimizer", choices=("sgd", "adam", "adamw"))
    momentum: float = hp(0.0, "momentum of sgd", low=0, high=1)
    nesterov: bool = hp(False, "Nesterov's form of momentum")
    weight_decay: float = hp(0.0, "weight decay", low=0)
    eps: float = hp(1e-8, "epsilon of adam and adamw", low=0)
    reset_optimizer: bool = hp(True, "a new optimizer each round instead of one kept by the client")
    schedule: str = hp(
        "constant", "learning rate over rounds", choices=("constant", "cosine", "exponential")
    )
    decay: float = hp(0.99, "factor per round of the exponential schedule", low=0, high=1)
    clip: float = hp(0.0, "largest norm of a step's gradient, per client (0: none)", low=0)
    weights: str = hp("uniform", "weight of a client in the mean", choices=("uniform", "samples"))
    participation: float = hp(
        1.0, "clients per round: a share (up to 1) or a number (from 2)", low=0
    )
    eval_every: int = hp(1, "rounds between evaluations", low=1)
    eval_batch: int = hp(512, "samples per batch of an evaluation", low=1)
    select: str = hp("last", "which round a reported score is of", choices=SELECT)

    def __post_init__(self) -> None:
        check_fields(self, "protocol")
        if self.participation == 0:
            raise BadValue("protocol.participation is 0: at least one client must take part")
        if self.participation > 1 and not float(self.participation).is_integer():
            raise BadValue(
                f"protocol.participation is {self.participation:g}: give a share of the clients "
                "(up to 1) or a whole number of them"
            )
        if self.momentum == 1:
            raise BadValue("protocol.momentum is 1: gradients would never fade; stay below 1")
        if self.nesterov and self.momentum == 0:
            raise BadValue("protocol.nesterov needs momentum: set momentum above 0")

    def local_work(self, n: int) -> int:
        """Steps of a round for a client of n training samples."""
        return self.steps or self.epochs * math.ceil(n / self.batch)

    def epoch_length(self, n: int) -> int:
        """Steps that make an epoch for a client of n training samples."""
        return math.ceil(n / self.batch)

    def rate(self, round: int) -> float:
        """The learning rate of a round, counted from 0."""
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1.0 + math.cos(math.pi * round / self.rounds))
        if self.schedule == "exponential":
            return self.lr * self.decay**round
        return self.lr

    def participants(self, clients: int) -> int:
        """How many of so many clients take part in a round."""
        if self.participation > 1:
            return min(clients, int(self.participation))
        return max(1, round_half_up(self.participation * clients))

    def replace(self, **changes: Any) -> Protocol:
        """A copy with other values."""
        return dataclasses.replace(self, **changes)


def round_half_up(x: float) -> int:
    """Round to the nearest whole number, halves upwards (Python rounds them to even)."""
    return math.floor(x + 0.5)
