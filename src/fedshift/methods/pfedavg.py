"""pFedAvg: federated training, then every client tunes the global model on its own data.

The tuned models are scored and kept by the clients; they never feed back. Tuning runs the ordinary
local steps with whatever loss the combined methods give (not to be confused with Per-FedAvg, the
meta-learning method).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedshift.hparam import hp
from fedshift.method import Method, Stage
from fedshift.protocol import Protocol


@dataclass(frozen=True)
class PFedAvg(Method):
    """FedAvg and a final local tuning.

    >>> [stage.name for stage in PFedAvg().stages(Protocol(rounds=3))]
    ['train', 'tune']
    """

    name: ClassVar[str] = "pfedavg"
    paper: ClassVar[str] = "a baseline of FRAug (Chen et al., ICCV 2023): fine-tuned FedAvg"
    view: ClassVar[str] = "personal"

    tune: int = hp(1, "rounds' worth of local steps in the final tuning", low=0, off=0)

    def stages(self, protocol: Protocol) -> tuple[Stage, ...]:
        """Training, then tuning by everyone."""
        train = Stage("train", protocol.rounds)
        if self.tune == 0:
            return (train,)
        return train, Stage("tune", self.tune, program="tune", everyone=True)
