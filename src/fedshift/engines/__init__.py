"""Where trips happen: `loop` (one client after another, or over processes) and `stacked`.

Every engine plays `Job`s to a `Result` with the same arithmetic; which one is right is a matter of
speed alone, and `choose` decides it by a measured rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol as Interface

from fedshift.trip import Job, Result


class Engine(Interface):
    """What a run needs of an engine."""

    name: str

    def play(self, jobs: Sequence[Job]) -> Result:
        """Play the trips of a round; results keep the order of the jobs."""
        ...

    def close(self) -> None:
        """End processes and give memory back."""
        ...
