"""RotatedMNIST: each client sees the digits at an angle of its own."""

from __future__ import annotations

import math

import torch

from fedshift import keys
from fedshift.data.partition import dirichlet, evenly, split
from fedshift.data.sets import digit_sources
from fedshift.data.warp import rotate_nearest
from fedshift.federation import Client, Federation, Samples

ANGLES = range(0, 150, 15)
FEDBR = {
    "rounds": 1000, "steps": 50, "batch": 64, "lr": 0.001, "eval_every": 2, "select": "top5-test",
}  # fmt: skip


def rotated_mnist(
    name: str, seed: int = 0, alpha: float = 0.0, concentration: str = "prior"
) -> Federation:
    """Ten clients at 0, 15 … 135 degrees, each with a tenth of the training digits.

    Four fifths of a client's digits are for training, one for validation. It is tested on all
    10,000 test digits, turned by its angle. Pixels only scale.

    Args:
        name: of the federation.
        seed: who gets which digits.
        alpha: concentration of FedBR's label skew, 0 for none: the same classes for everybody.
        concentration: "prior" multiplies alpha by the class's share of what is left, as FedBR's
            code does; "even" does not.
    """
    mnist = digit_sources.load("mnist")
    y = mnist["train"].y
    key = keys.fold(seed, "rotated-mnist")
    parts = (
        dirichlet(y, len(ANGLES), alpha, seed=key, concentration=concentration)
        if alpha
        else evenly(y, len(ANGLES), seed=key)
    )
    clients = []
    for degrees, part in zip(ANGLES, parts):
        own = turned(mnist["train"].take(part), degrees)
        train, val, _ = split(own, (0.8, 0.2, 0.0), seed=keys.fold(key, degrees))
        clients.append(Client(f"{degrees:03d}-degrees", train, val, turned(mnist["test"], degrees)))
    return Federation(
        name,
        tuple(clients),
        tuple("0123456789"),
        recommended={"model": "small-cnn"} | FEDBR,
    )


def turned(samples: Samples, degrees: float) -> Samples:
    """Images turned counter-clockwise, pixels copied whole."""
    angle = torch.tensor([math.radians(degrees)], dtype=torch.float64)
    return Samples(rotate_nearest(samples.x, angle), samples.y)
