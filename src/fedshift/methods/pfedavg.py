"""# pFedAvg: the mean, tuned at home

Federated training as FedAvg's, and then every client goes on alone from the last model: it takes
the ordinary local steps, with whatever loss the combined methods give, and keeps the result. This
is not Per-FedAvg, the meta-learning method. It stands among the baselines of FRAug (Chen et al.,
ICCV 2023).

## The loss

The task's own. The final tuning takes as many steps as `tune` rounds, at the learning rate of the
last one. With `when="rounds"` there is none: each client's model is scored in every round as it
leaves the local steps (FedGenP's "personalized" accuracy, of any method).

## When to use it

As the plainest personalisation, which others should beat; also behind other methods, as in
`fedprox+pfedavg`. Scores are of the tuned models, which never feed back.

## What crosses the wire

Nothing beside the model: once it is tuned, it stays.
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

    when: str = hp(
        "end",
        "tuned after the last round, or scored in every round as they leave its local steps",
        choices=("end", "rounds"),
    )
    tune: int = hp(1, "rounds' worth of local steps in the final tuning", low=0, off=0)

    @property
    def scores_trained(self) -> bool:  # type: ignore[override]
        """Whether the model that left a round's local steps is the client's own."""
        return self.when == "rounds"

    def stages(self, protocol: Protocol) -> tuple[Stage, ...]:
        """Training, then tuning by everyone."""
        train = Stage("train", protocol.rounds)
        if self.tune == 0 or self.when == "rounds":
            return (train,)
        return train, Stage("tune", self.tune, program="tune", everyone=True)
