"""FRAug's tables: Digits, Office-Home, PACS and RxRx1, each client scored with its own model.

The released code scores the client's checkpoint of the best selection accuracy; on Office-Home and
PACS it scores it on the very images that selected it. Here validation chooses the round and test
images, which nobody else sees, give the score. Grids of hyperparameters are published as grids: the
recipes take one point of each, and say which.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from fedshift.papers.experiment import Case, Entry, Experiment
from fedshift.protocol import Protocol

PAPER = "FRAug"


def protocol(steps: int, batch: int) -> Protocol:
    """200 rounds of a few steps, validated every fifth round."""
    return Protocol(
        rounds=200,
        steps=steps,
        batch=batch,
        lr=0.01,
        momentum=0.5,
        eval_every=5,
        select="best-val",
    )


def _settings(**values: Any) -> dict[str, Any]:
    return {f"fraug.{name}": value for name, value in values.items()}


digits = Case(
    "Digits",
    "1% data, 4 clients",
    "digits/fraug",
    "digits-cnn",
    protocol(20, 64),
    {
        "MT": "client:mnist",
        "MM": "client:mnist-m",
        "SV": "client:svhn",
        "UP": "client:usps",
        "avg": "mean",
    },
    _settings(
        alpha=1.0,
        beta=1.0,
        lr_generator=0.05,
        lr_rtnet=0.05,
        generator_distance="l2",
        rtnet_distance="gaussian",
        ramp_rate=0.002,
        ramp_residual="never",
    ),
)
home = Case(
    "OfficeHome",
    "10% data, 4 clients",
    "office-home/fraug",
    "resnet18",
    protocol(10, 16),
    {
        "A": "client:art",
        "C": "client:clipart",
        "P": "client:product",
        "R": "client:real-world",
        "avg": "mean",
    },
    _settings(alpha=1.25, beta=1.25, lr_generator=0.02, lr_rtnet=0.05, ramp_rate=0.01),
    imagenet=True,
)
pacs = Case(
    "PACS",
    "10% data, 4 clients",
    "pacs/fraug",
    "resnet18",
    protocol(5, 32),
    {
        "A": "client:art",
        "C": "client:cartoon",
        "P": "client:photo",
        "S": "client:sketch",
        "avg": "mean",
    },
    _settings(
        alpha=10.0,
        beta=1.0,
        lr_generator=0.05,
        lr_rtnet=0.05,
        rtnet_distance="l2",
        ramp_rate=0.01,
        local_generator_norm=False,
    ),
    imagenet=True,
)


def rxrx1(per_type: int) -> Case:
    """Two, three or four clients for each cell type."""
    clients = 4 * per_type
    return Case(
        "RxRx1",
        f"{clients} clients",
        f"rxrx1/fraug-{clients}",
        "resnet18",
        protocol(10, 32),
        {"avg": "mean"},
        imagenet=True,
    )


fedavg, fedbn = Entry("FedAvg", "fedavg"), Entry("FedBN", "fedbn")
fraug = Entry("FRAug", "fraug")
# The paper's single-client and pooled training: momentum 0.9, weight decay, 40 epochs at most.
ALONE = {
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 5e-4,
    "rounds": 40,
    "steps": 0,
    "epochs": 1,
    "eval_every": 1,
}
METHODS = (
    Entry("Single", "local", protocol=ALONE),
    Entry("All", "centralized", protocol=ALONE),
    fedavg,
    Entry("FedProx", "fedprox"),
    Entry("FedProto", "fedproto"),
    Entry("FedBABU", "fedbabu"),
    Entry("pFedAvg", "pfedavg"),
    Entry("PartialFed", "partialfed"),
    fedbn,
    fraug,
)
PARTS = {
    "RTNet only": {"augment": "rtnet", "stream": "batch"},
    "RTNet+EMA": {"augment": "rtnet"},
    "G only": {"augment": "generator", "stream": "batch"},
    "G+EMA": {"augment": "generator"},
    "G+RTNet": {"stream": "batch"},
    "G+RTNet+EMA (full)": {},
}
NOISES = {"Uniform(-gamma,gamma)": "uniform", "Laplace(0,gamma)": "laplace"}
NOISES["Normal(0,gamma)"] = "normal"


def _ablation(case: Case) -> Case:
    return dataclasses.replace(case, setting="ablation", columns={"avg": "mean"})


EXPERIMENTS = (
    Experiment(
        "fraug/table2",
        PAPER,
        "T2",
        "Methods on Office-Home, Digits and PACS",
        (home, digits, pacs),
        METHODS,
        note="On Office-Home and PACS the paper's networks begin with ImageNet's weights.",
    ),
    Experiment(
        "fraug/table3",
        PAPER,
        "T3",
        "RxRx1, more clients for each cell type",
        tuple(map(rxrx1, (2, 3, 4))),
        (fedavg, Entry("HarmoFL", "harmofl"), fedbn, fraug),
    ),
    Experiment(
        "fraug/table5",
        PAPER,
        "T5",
        "Parts of FRAug",
        tuple(map(_ablation, (home, pacs, digits))),
        tuple(Entry(name, "fraug", _settings(**values)) for name, values in PARTS.items()),
    ),
    Experiment(
        "fraug/table6",
        PAPER,
        "T6",
        "Noise on the inputs of training",
        tuple(
            dataclasses.replace(
                home,
                setting="input noise avg acc",
                columns={f"sigma={sigma}": "mean"},
                settings={**home.settings, "fraug.input_noise": sigma},
            )
            for sigma in (0.01, 0.1, 1.0)
        ),
        (
            Entry("FedAvg", "fraug", {"fraug.augment": "none", "fraug.local_norm": "none"}),
            Entry("FedBN", "fraug", {"fraug.augment": "none"}),
            fraug,
        ),
        note="FedAvg and FedBN get their noise from FRAug with its augmentation off.",
    ),
    Experiment(
        "fraug/table7",
        PAPER,
        "T7",
        "Other ways to augment on Office-Home",
        (dataclasses.replace(home, setting="augmentation comparison"),),
        (
            fedavg,
            *(
                Entry(name, "fraug", _settings(augment=kind, local_norm="none"))
                for name, kind in NOISES.items()
            ),
            Entry("FAug", "faug"),
            Entry("FedReg", "fedreg"),
            fraug,
        ),
    ),
)
