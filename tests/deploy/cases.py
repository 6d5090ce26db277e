"""The methods of the conformance tests, at settings that let them finish quickly."""

from __future__ import annotations

import fedshift as fs
from tests.methods.test_battery import make

CASES = (
    "fedavg",
    "fedbn",
    "scaffold",
    "fedfa-plus",
    "fraug",
    "fedgenp",
    "fedbr",
    "fedlsi",
    "fedbn+mixup",
)
PROTOCOL = fs.Protocol(rounds=2, epochs=1, batch=5, lr=0.1, eps=1e-4)


def loop(name: str) -> fs.Run:
    """The run that the others must equal."""
    return run(name, engine="loop", workers=1)


def run(name: str, **options) -> fs.Run:
    """A run on the toy federation, played."""
    from tests.toys import federation

    return fs.Run(
        federation(),
        make(name),
        PROTOCOL,
        "tests.toys:ToyNet",
        dtype="float64",
        device="cpu",
        warn=lambda text: None,
        **options,
    ).play()
