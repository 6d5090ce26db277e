"""Federations and networks with the sizes of papers, and nothing else of theirs."""

from __future__ import annotations

import torch
from torch import nn

from fedshift.federation import Client, Federation, Samples
from fedshift.models import Staged

SHAPE = (1, 2, 2)


def federation(classes: int, clients: int = 3) -> Federation:
    """Clients with as many samples as it takes to play; only sizes matter."""
    n = 8
    samples = Samples(torch.rand(n, *SHAPE), torch.arange(n) % classes)
    names = [f"site{k}" for k in range(clients)]
    return Federation(
        "sizes",
        tuple(Client(name, samples, samples, samples) for name in names),
        tuple(map(str, range(classes))),
    )


class Wide(Staged):
    """Features of a width, and a head."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stages = ("body",)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(4, width), nn.ReLU())
        self.head = nn.Linear(width, classes)


class Channels(Staged):
    """Stages with so many channels each, in 1 x 1 kernels, and a dense stage behind."""

    def __init__(self, channels: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.stages = (*(f"conv{k}" for k, _ in enumerate(channels, start=1)), "fc")
        for stage, inputs, outputs in zip(self.stages, (1, *channels), channels):
            self.add_module(stage, nn.Sequential(nn.Conv2d(inputs, outputs, 1), nn.ReLU()))
        self.fc = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(channels[-1], 8))
        self.head = nn.Linear(8, classes)
