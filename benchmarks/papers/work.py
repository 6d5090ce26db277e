"""The rows to play, the most wanted first."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedshift.papers import experiment
from fedshift.papers.reproduce import Plan, slug
from fedshift.papers.side_by_side import Part
from fedshift.papers.side_by_side import parts as parts_of


@dataclasses.dataclass(frozen=True)
class Work:
    """Some rows of an experiment.

    Args:
        experiment: its name.
        methods, settings, seeds: which, as for `fedshift reproduce`.
        dtype: how they are computed.
    """

    experiment: str
    methods: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    seeds: int = 0
    dtype: str = "float32"


OFFICE = {"settings": ("Office-Caltech10",), "dtype": "tf32"}
FEDFA = ("FedAvg", "FedFA^l (released)", "FedFA^l", "FedFA+", "FedBN")
TABLE3 = ("FedProx", "FedAvgM", "FedRobust", "FedMix", "FedSAM", "FedSR", "FPL")
MAIN = ("FedAvg", "FedGenP (released)", "FedGenP (capped, as coded)", "FedGen")
DIGITS = {"settings": ("Digits",), "dtype": "tf32"}
READINGS = {"experiment": "fedbr/readings", "dtype": "tf32"}

WORK: tuple[Work, ...] = (
    Work("fedfa/table3", ("FedAvg", "FedFA^l (released)", "FedBN"), seeds=1, **OFFICE),
    Work("fedgenp/table4", MAIN),
    Work("fedfa/table3", FEDFA, **OFFICE),
    Work(**READINGS, methods=("FedAvg",)),
    Work("fedgenp/table4", ("FedGenP (capped)", "FedEnsemble", "FedGenP (uncapped)")),
    Work("fedfa/table9", ("FedFA-R", "FedFA-C"), **OFFICE),
    Work("fedfa/table3", TABLE3, **OFFICE),
    # FedBR has no momentum in the release
    Work(**READINGS, methods=("FedBR",), settings=("CNN, 10 clients", "as released")),
    Work("fedfa/table6", ("FedAvg", "FedFA^l", "FedFA+", "FedBN"), seeds=1, **OFFICE),
    Work("fraug/table2", **DIGITS),
    Work("fraug/table5", **DIGITS),
)


def parts(
    works: Sequence[Work], out: Path, rounds: int, quick: bool, device: str
) -> Iterator[Part]:
    """The rows of works, in order."""
    for work in works:
        plan = Plan(
            experiment(work.experiment),
            out / slug(work.experiment),
            work.methods,
            work.settings,
            work.seeds,
            rounds,
            quick,
            options={"device": device, "dtype": work.dtype},
        )
        yield from sorted(parts_of(plan), key=lambda part: _rank(part, work.methods))


def _rank(part: Part, methods: Sequence[str]) -> int:
    """A row's place: as its method is named."""
    return methods.index(part.entry.label) if part.entry.label in methods else len(methods)
