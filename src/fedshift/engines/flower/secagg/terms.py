"""How sums are taken: range and bits of a number, the ring, and how many sites must be left.

A number x becomes the whole number round(x / step), is multiplied by its site's weight, and sums
live in the ring of 2^32 or 2^64 elements, whichever is the least in which no sum can wrap. A mean
is off by step / 2 at most.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from fedshift.errors import BadRun, BadValue, UnknownName
from fedshift.hparam import check_fields, hp, hypers


@dataclasses.dataclass(frozen=True)
class Secure:
    """Secure aggregation.

    >>> Secure(clip=8, bits=20).step
    1.52587890625e-05
    """

    threshold: float = hp(
        0.5,
        "a sum is opened when more than this share of a round's sites are left",
        low=0.5,
        high=1,
    )
    clip: float = hp(
        16384.0, "largest absolute value of a number that is summed (of weights: its change)", low=0
    )
    bits: int = hp(42, "bits of a number that is summed", low=2, high=52)

    def __post_init__(self) -> None:
        check_fields(self, "secure")
        if self.clip == 0:
            raise BadValue("secure.clip is 0: no number could be summed; give one above 0")
        if self.threshold == 1:
            raise BadValue("secure.threshold is 1, which no round can exceed: give less")

    @property
    def step(self) -> float:
        """The distance of neighbouring numbers: a mean is off by half of it at most."""
        return self.clip / self.largest

    @property
    def largest(self) -> int:
        """The largest whole number that stands for a number."""
        return 1 << (self.bits - 1)

    def least(self, asked: int) -> int:
        """How many sites must be left of those asked.

        >>> Secure().least(3), Secure().least(4), Secure(threshold=2 / 3).least(10)
        (2, 3, 7)
        """
        least = math.floor(self.threshold * asked + 1e-9) + 1
        if asked < 2 or least > asked:
            raise BadRun(
                f"in a round of {asked} site{'s' * (asked != 1)} no sum hides it: let two or more "
                "take part, or leave secure aggregation off"
            )
        return least

    def width(self, weight: int) -> int:
        """Bits of an element of the ring in which numbers of so much weight together do not wrap.

        >>> Secure(clip=8, bits=20).width(100), Secure().width(100)
        (32, 64)
        """
        for width in (32, 64):
            if weight * self.largest < 1 << (
                width - 2
            ):  # a bit is left: falsehoods are out of range
                return width
        raise BadRun(
            f"sums of weight {weight} need more than 64 bits with {self.bits} for each number: "
            'lower bits, or weigh sites alike (weights = "uniform")'
        )


def secure_of(table: Mapping[str, Any], where: str) -> Secure | None:
    """The table `[secure]` of a deployment's file (None: there is none, or it is switched off).

    >>> secure_of({"bits": 20}, "deploy.toml").bits
    20
    """
    known = hypers(Secure)
    for name in table:
        if name != "enabled" and name not in known:
            raise UnknownName(f"entry of [secure] in {where}", name, [*known, "enabled"])
    enabled = table.get("enabled", True)
    if not isinstance(enabled, bool):
        raise BadValue(f"enabled of [secure] in {where} is {enabled!r}: give true or false")
    if not table or not enabled:
        return None
    return Secure(**{n: v for n, v in table.items() if n != "enabled"})
