"""The experiments of five papers: what they published, and recipes that run them again.

FRAug (Chen et al., ICCV 2023), FedFA and FedFA+ (Zhou and Konukoglu, ICLR 2023, and the extended
version), FedGenP, FedBR (Guo et al., ICML 2023) and federated domain generalization with latent
space inversion (FedLSI, ICDM 2025). One file a paper holds its tables; `published.csv` has every
number that they print, `reproduce` plays a table and sets both side by side.
"""

from __future__ import annotations

import functools
import importlib

from fedshift.errors import UnknownName
from fedshift.papers.experiment import Experiment

PAPERS = ("fedfa", "fraug", "fedgenp", "fedbr", "fedlsi")


@functools.cache
def experiments() -> dict[str, Experiment]:
    """Every experiment by its name.

    >>> experiments()["fedgenp/table4"].seeds
    3
    """
    found: dict[str, Experiment] = {}
    for paper in PAPERS:
        for experiment in importlib.import_module(f"fedshift.papers.{paper}").EXPERIMENTS:
            found[experiment.name] = experiment
    return found


def experiment(name: str) -> Experiment:
    """An experiment by its name, such as "fedfa/table3"."""
    known = experiments()
    if name not in known:
        raise UnknownName("experiment", name, known)
    return known[name]
