"""A method of your own, in one file outside the package.

    python examples/own_method.py
    fedshift run examples/own_method.py:Mine --data shifted-digits --rounds 2
    fedshift run examples/own_method.py:Mine+fedbn --data shifted-digits --set pull=2

Clients that train alone for a while forget what the others know. This method holds them back
twice: a client's predictions stay near those of the model it received (distillation, Hinton et al.
2015), and the server goes to the new mean a part of the way only (the slow weights of Lookahead,
Zhang et al. 2019). Both hooks are pure functions of tensors, so it runs on every engine as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

import fedshift as fs
from fedshift.net import Net, Output


@dataclass(frozen=True)
class Mine(fs.Method):
    """Distillation from the received model, and slow weights at the server."""

    name: ClassVar[str] = "mine"
    paper: ClassVar[str] = "an example"

    pull: float = fs.hp(1.0, "weight of the distillation term", low=0, off=0.0)
    heat: float = fs.hp(2.0, "temperature of the distillation", low=0.1)
    slow: float = fs.hp(0.9, "how far the server goes towards the new mean", low=0, high=1, off=1.0)

    def loss(self, out: Output, y: Tensor, ctx: fs.Ctx, net: Net) -> dict[str, Tensor]:
        """A term beside cross-entropy: stay near what the received model says of this batch."""
        teacher = (net.at(ctx.initial)(out.x) / self.heat).log_softmax(1)
        student = (out.logits / self.heat).log_softmax(1)
        apart = (teacher.exp() * (teacher - student)).sum(1).mean()  # Kullback-Leibler
        return {"distil": self.pull * self.heat**2 * apart}

    def server_step(
        self, old: dict[str, Tensor], new: dict[str, Tensor], server: fs.State
    ) -> tuple[dict[str, Tensor], fs.State]:
        """Whole numbers (batch counters) are taken as they are."""
        floats = {n: t for n, t in new.items() if t.is_floating_point()}
        return {**new, **{n: old[n] + self.slow * (t - old[n]) for n, t in floats.items()}}, server


if __name__ == "__main__":
    data = fs.data.load("shifted-digits")
    protocol = fs.Protocol(rounds=4, epochs=1, batch=16, lr=0.1, momentum=0.9)
    for method in ("fedavg", Mine()):
        print(fs.Run(data, method, protocol, model="mlp").play().report().table())
        print()
