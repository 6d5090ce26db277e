"""What a run's privacy has cost so far: epsilon, by `dp-accounting`.

A client that took part in m rounds has let m Gaussian mechanisms look at its update. Nothing else
is counted in its favour: who takes part is drawn without regard to data and known to everybody, so
sampling does not hide anybody, and no amplification by sampling is claimed. The epsilon of a run is
that of the client that took part most often. m Gaussian mechanisms of noise z are one of noise
z / sqrt(m), whose epsilon is known exactly.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedshift import files
from fedshift.errors import BadRun
from fedshift.privacy import Privacy


def check_installed(privacy: Privacy) -> None:
    """Refuse noise whose epsilon could not be told."""
    if privacy.noise and importlib.util.find_spec("dp_accounting") is None:
        raise BadRun(
            "privacy needs dp-accounting, which is not installed: pip install 'fedshift[dp]'"
        )


@functools.lru_cache(maxsize=1024)
def epsilon(noise: float, rounds: int, delta: float) -> float | None:
    """Epsilon of so many Gaussian mechanisms of sensitivity 1; None where there is no bound."""
    if rounds == 0:
        return 0.0
    if noise == 0:
        return None
    import dp_accounting

    return float(dp_accounting.get_epsilon_gaussian(noise / math.sqrt(rounds), delta))


def cost(privacy: Privacy, rounds: int) -> dict[str, Any]:
    """What a line of `metrics.jsonl` says of a client that took part in so many rounds.

    `epsilon` is for a client's updates against none (all zero), which differ by the clip at most;
    `epsilon_exchange` for a client's data against any other, whose updates differ by twice that.
    """
    return {
        "epsilon": epsilon(privacy.noise, rounds, privacy.delta),
        "epsilon_exchange": epsilon(privacy.noise / 2, rounds, privacy.delta),
        "delta": privacy.delta,
    }


class Ledger:
    """How often each client has let something leave.

    Args:
        path: where attempts are written down before they are made (None: kept in memory). Noise of
            the system comes anew when a round is played again, which then counts twice; noise of a
            seed comes again, and counts once.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        known = files.read_json(path) if path is not None and path.exists() else {}
        self.counts: Counter[str] = Counter(known)

    def note(self, clients: Iterable[str]) -> None:
        """These clients are about to let something leave."""
        self.counts.update(clients)
        if self._path is not None:
            files.write_json(self._path, dict(self.counts))

    @property
    def most(self) -> int:
        """How often the busiest client did."""
        return max(self.counts.values(), default=0)
