"""# FedRobust: the worst affine change of each client's inputs

Clients' inputs may differ by an affine change: another gain, another offset, other colours. Each
client looks for the one that hurts most, x -> Lambda x + delta, and trains the model under it, as
that changes along. The paper is Reisizadeh, Farnia, Pedarsani and Jadbabaie, Robust Federated
Learning: The Case of Affine Distribution Shifts, NeurIPS 2020.

## The loss

    min over w, max over Lambda and delta:
        L(w; Lambda x + delta) - penalty (||Lambda - I||^2 + ||delta||^2)

A local step goes down in w and up in Lambda and delta at once: both gradients are taken at the same
point. Lambda and delta begin at I and 0, never leave their client, and go on from round to round.
In evaluation inputs are as they are.

Lambda mixes channels, alike at every position (`shape=channel`: C x C, and C offsets), scales
every number by itself (`diagonal`), or is a whole matrix (`full`, for small inputs: 3 x 32 x 32
pixels make 9.4 million entries).

## When to use it

Where sites differ by gain, offset or colour, and one global model is wanted. A step takes two
passes. The penalty has to be there, or the maximum has no bound; but its product with the rate of
ascent has to stay below 1, or the ascent overshoots. `ascent=0` is off.

## What crosses the wire

Nothing beside the model. Clients keep Lambda and delta.

## Differences from the paper

No code was released. Rates and penalty behind published tables are unknown; the defaults are equal
rates, a penalty of 1, and the smallest shape. The ascent is by SGD with the protocol's momentum,
whatever optimizer the model has. The ascent's pass leaves running statistics alone. Where other
methods add terms to the loss, the ascent looks at the task's alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from fedshift import task
from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Method, Phase, Scope
from fedshift.net import insert_first

if TYPE_CHECKING:
    from fedshift.net import Net, Output

AFFINE, GAIN = "fedrobust_affine", "fedrobust-gain"
SHAPES = ("channel", "diagonal", "full")


@dataclass(frozen=True)
class FedRobust(Method):
    """Min-max training over affine changes of the inputs.

    >>> [phase.name for phase in FedRobust().phases()]
    ['model', 'fedrobust-gain']
    """

    name: ClassVar[str] = "fedrobust"
    paper: ClassVar[str] = (
        "Reisizadeh et al., Robust Federated Learning: The Case of Affine Distribution Shifts, "
        "NeurIPS 2020"
    )

    penalty: float = hp(1.0, "weight of the distance from no change (lambda)", low=0)
    ascent: float = hp(
        1.0, "rate of the ascent over the model's rate (eta_2 / eta_1)", low=0, off=0.0
    )
    shape: str = hp("channel", "what Lambda and delta act on", choices=SHAPES)

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Put the affine change before the first stage."""
        if self.ascent:
            insert_first(model, facts.shape, AFFINE, Affine(facts.shape, self.shape))
        return model

    def scope(self, name: str, module: nn.Module) -> Scope:
        """The affine change is the client's own, trained by its own phase."""
        return Scope("kept", AFFINE) if isinstance(module, Affine) else Scope()

    def phases(self) -> tuple[Phase, ...]:
        """Down in the model and up in the affine change, from the same point."""
        if not self.ascent:
            return (Phase(),)
        awake = ("model", AFFINE)
        up = Phase(
            GAIN, (AFFINE,), (GAIN,), sign=-1.0, together=True, train_mode=awake, optimizer="sgd"
        )
        return (Phase(train_mode=awake), up)

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """What the ascent makes large."""
        if ctx.phase != GAIN:
            return {}
        hurt = task.loss(ctx.facts.task, net.aside()(out.x), y)
        change = [net.tensors[f"{AFFINE}.{name}"] for name in ("turn", "shift")]
        return {GAIN: self.ascent * (hurt - self.penalty * distance(*change))}


class Affine(nn.Module):
    """x -> Lambda x + delta in training; held as Lambda - I and delta, which begin at 0.

    Args:
        shape: of one input.
        kind: "channel", "diagonal" or "full".
    """

    def __init__(self, shape: tuple[int, ...], kind: str) -> None:
        super().__init__()
        self.kind = kind
        whole = 1
        for n in shape:
            whole *= n
        over = {"channel": shape[:1], "diagonal": shape, "full": (whole,)}[kind]
        square = over if kind == "diagonal" else (*over, *over)
        self.turn = nn.Parameter(torch.zeros(square))
        self.shift = nn.Parameter(torch.zeros(over))

    def forward(self, x: Tensor) -> Tensor:
        """The inputs, changed; as they are in evaluation."""
        if not self.training:
            return x
        if self.kind == "diagonal":
            return x + (self.turn * x + self.shift)
        flat = x.flatten(1).unsqueeze(2) if self.kind == "full" else x.reshape(*x.shape[:2], -1)
        moved = torch.einsum("dc,bcp->bdp", self.turn, flat) + self.shift.unsqueeze(1)
        return x + moved.reshape(x.shape)


def distance(turn: Tensor, shift: Tensor) -> Tensor:
    """||Lambda - I||^2 + ||delta||^2, from Lambda - I and delta.

    >>> distance(torch.tensor([[1.0, 0.0], [0.0, -1.0]]), torch.tensor([2.0, 0.0]))
    tensor(6.)
    """
    return turn.square().sum() + shift.square().sum()
