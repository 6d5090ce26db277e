"""What a user asks of differential privacy: how far updates are clipped, how much noise, where.

The arithmetic is in `fedshift.noising`, what it costs in `fedshift.ledger`, what it protects
against in docs/privacy.md.
"""

from __future__ import annotations

import dataclasses

from fedshift.errors import BadValue
from fedshift.hparam import check_fields, hp


@dataclasses.dataclass(frozen=True)
class Privacy:
    """Clipping and noise.

    >>> Privacy(clip=0.5, noise=1.1).where
    'central'
    """

    clip: float = hp(1.0, "largest norm of a client's update of the model (C)", low=0)
    noise: float = hp(1.0, "standard deviation of the noise, in units of the norms (z)", low=0)
    where: str = hp(
        "central",
        "who adds the noise: the server to the mean, or each client to its own update",
        choices=("central", "local"),
    )
    delta: float = hp(1e-5, "the delta at which epsilon is given", low=0, high=1)
    clip_extras: float = hp(
        0.0, "largest norm of what methods upload beside the model (0: refuse them)", low=0
    )
    source: str = hp(
        "seed",
        "where noise comes from: the run's seed (repeatable, protects nobody), or the system",
        choices=("seed", "system"),
    )

    def __post_init__(self) -> None:
        check_fields(self, "privacy")
        if self.clip == 0:
            raise BadValue("privacy.clip is 0: no update could pass; give a norm above 0")
        if not 0 < self.delta < 1:
            raise BadValue(f"privacy.delta is {self.delta:g}: give a number between 0 and 1")

    @property
    def local(self) -> bool:
        """Whether clients add the noise."""
        return self.where == "local"
