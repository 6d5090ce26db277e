"""FedBR's tables: RotatedMNIST, CIFAR-10 and CIFAR-100 under label skew, PACS.

A round is 50 local steps, the model is scored every second round, and the reported accuracy is the
mean of the five best rounds by test accuracy: chosen on test data, as the paper does, and called so
(`top5-test`). With the concentration of the released code (alpha times the classes' shares) FedAvg
does not come near the published curve; `rotated-mnist/fedbr-even` deals flat, at alpha per class.
"""

from __future__ import annotations

import dataclasses

from fedshift.papers.experiment import Case, Entry, Experiment
from fedshift.protocol import Protocol

PAPER = "FedBR"


def protocol(rounds: int, lr: float, batch: int, momentum: float = 0.0) -> Protocol:
    """Fifty steps a round, scored every second round, the five best by test."""
    return Protocol(
        rounds=rounds,
        steps=50,
        batch=batch,
        lr=lr,
        momentum=momentum,
        eval_every=2,
        select="top5-test",
    )


mnist = Case(
    "RotatedMNIST",
    "CNN, 10 clients, alpha=0.1",
    "rotated-mnist/fedbr-even",
    "fedbr-cnn",
    protocol(1000, 0.001, 64),
    {"acc": "mean", "rounds_to_80": "rounds:0.80"},
    {"fedbr.size": 64, "fedbr.lam": 1.0},
)
cifar10 = Case(
    "CIFAR10",
    "VGG11, 10 clients, alpha=0.1, rotated",
    "cifar-10/fedbr",
    "vgg11",
    protocol(1000, 0.01, 32),
    {"acc": "mean", "rounds_to_55": "rounds:0.55"},
    {"fedbr.lam": 0.1},
)
cifar100 = Case(
    "CIFAR100",
    "CCT-7/3x1, 10 clients, alpha=0.1",
    "cifar-100/fedbr",
    "cct-7/3x1",
    protocol(800, 0.01, 32, momentum=0.9),
    {"acc": "mean", "rounds_to_43": "rounds:0.43"},
    {"fedbr.lam": 1.0},
)
pacs = Case(
    "PACS",
    "8 clients, VGG11, 400 rounds",
    "pacs/fedbr",
    "vgg11",
    protocol(400, 0.01, 32),
    {"acc": "mean"},
    {"fedbr.lam": 0.1},
)
# The readings of RotatedMNIST that the paper leaves open.
code = dataclasses.replace(
    mnist,
    setting="concentration alpha x prior, as released",
    data="rotated-mnist/fedbr",
    rerun={"FedAvg": 41.0, "FedBR": 33.0},
)
momentum = dataclasses.replace(
    mnist,
    setting="momentum 0.9, as released for FedAvg",
    protocol=mnist.protocol.replace(momentum=0.9),
)
both = dataclasses.replace(
    momentum,
    setting="concentration alpha x prior and momentum 0.9, as released for FedAvg",
    data=code.data,
    rerun={"FedAvg": 57.6},
)


def under(case: Case, setting: str, **columns: str) -> Case:
    """The same run under another table's name."""
    return dataclasses.replace(case, setting=setting, columns=columns or {"acc": "mean"})


local, fedavg = Entry("Local", "local"), Entry("FedAvg", "fedavg")
fedprox = Entry("FedProx", "fedprox", {"fedprox.mu": 0.01})
moon = Entry("Moon", "moon")
dann, groupdro = Entry("DANN", "dann"), Entry("GroupDRO", "groupdro")
fedbr, fedmix = Entry("FedBR", "fedbr"), Entry("FedMix", "fedmix")
MIXUP = {"mixup.alpha": 0.2}
mixup = Entry("FedAvg+Mixup", "mixup", MIXUP)
bare_mixup = Entry("Mixup", "mixup", MIXUP)
TABLE1: tuple[Entry, ...] = (local, fedavg, fedprox, moon, dann, groupdro, fedbr, mixup, fedmix)
TABLE1 += (Entry("FedBR+Mixup", "fedbr+mixup", MIXUP),)
TABLE13: tuple[Entry, ...] = (
    fedavg,
    fedprox,
    Entry("SCAFFOLD", "scaffold"),
    fedmix,
    moon,
    dann,
    bare_mixup,
)
TABLE13 += (groupdro, fedbr)
PARTS = (
    fedavg,
    Entry("Component 1", "fedbr", {"fedbr.mu": 0.0}),
    Entry(
        "Component 1 + min step",
        why="its min step is that of component 2, without its features: the paper does not say how",
    ),
    Entry("Component 2", "fedbr", {"fedbr.lam": 0.0}),
    Entry("Component 2 w/o max step", "fedbr", {"fedbr.lam": 0.0, "fedbr.max_step": False}),
    fedbr,
)
MIXTURE = {"fedbr.source": "mixture"}
BESIDE = {"FedAvg": "fedavg", "FedCM": "fedcm", "FedDecorr": "feddecorr", "FedNTD": "fedntd"}
vhl = (
    Entry("VHL (2000 virtual data)", "vhl"),
    Entry("VHL (20000 virtual data)", why="a set of 20,000 virtual images: no recipe yet"),
    Entry("FedBR (32 pseudo-data)", "fedbr"),
)


def _grid(number: int, title: str, cases: tuple[Case, ...], entry: Entry) -> Experiment:
    return Experiment(f"fedbr/table{number}", PAPER, f"T{number}", title, cases, (entry,))


def _taus(case: Case, prefix: str, values: tuple[float, ...], **columns: str) -> tuple[Case, ...]:
    return tuple(
        dataclasses.replace(
            under(case, f"{prefix}tau1=2.0, tau2={tau}", **columns),
            settings={**case.settings, "fedbr.tau2": tau},
        )
        for tau in values
    )


EXPERIMENTS = (
    Experiment(
        "fedbr/table1",
        PAPER,
        "T1",
        "Methods on three data sets",
        (mnist, cifar10, cifar100),
        TABLE1,
    ),
    Experiment(
        "fedbr/readings",
        PAPER,
        "T1",
        "RotatedMNIST as the paper and its code may be read",
        (mnist, code, momentum, both),
        (fedavg, fedbr),
        seeds=1,
        note="Which reading brings FedAvg to 80 % near round 828, as published.",
    ),
    Experiment(
        "fedbr/table2",
        PAPER,
        "T2",
        "Pseudo-data beside virtual data",
        (
            under(cifar10, "VGG11, pseudo-data once", acc="mean", rounds_to_60="rounds:0.60"),
            under(
                cifar100,
                "CCT, Mixup backbone, pseudo-data once",
                acc="mean",
                rounds_to_46="rounds:0.46",
            ),
        ),
        vhl,
    ),
    Experiment(
        "fedbr/table3",
        PAPER,
        "T3",
        "FedBR on top of other methods",
        (
            dataclasses.replace(
                under(cifar10, "without FedBR, Mixture pseudo-data once (32)"), only=tuple(BESIDE)
            ),
            dataclasses.replace(
                under(cifar10, "with FedBR, Mixture pseudo-data once (32)"),
                only=tuple(f"{name}+FedBR" for name in BESIDE),
            ),
        ),
        (
            *(Entry(name, method) for name, method in BESIDE.items()),
            *(
                Entry(f"{name}+FedBR", "fedbr" if name == "FedAvg" else f"{method}+fedbr", MIXTURE)
                for name, method in BESIDE.items()
            ),
        ),
        note="The Mixture needs public images: --set is not enough, see the page of FedBR (proxy).",
    ),
    Experiment("fedbr/table4", PAPER, "T4", "Parts of FedBR", (mnist, cifar10, cifar100), PARTS),
    Experiment(
        "fedbr/table5",
        PAPER,
        "T5",
        "A hundred clients, ten of them in a round",
        (
            dataclasses.replace(
                under(cifar10, "100 clients, 10 sampled, alpha=0.1, VGG11"),
                data="cifar-10/fedbr-100",
                protocol=cifar10.protocol.replace(participation=10),
            ),
        ),
        (
            fedavg,
            Entry("FedDecorr", "feddecorr"),
            fedmix,
            fedprox,
            bare_mixup,
            Entry("VHL", "vhl"),
            fedbr,
        ),
    ),
    Experiment(
        "fedbr/table8",
        PAPER,
        "T8",
        "Over three seeds",
        (
            under(mnist, "3 seeds", acc="mean", rounds_to_80="rounds:0.80"),
            under(cifar10, "3 seeds", acc="mean", rounds_to_55="rounds:0.55"),
        ),
        (fedavg, dann, bare_mixup, groupdro, fedbr),
    ),
    Experiment(
        "fedbr/table9",
        PAPER,
        "T9",
        "ResNet-18 with group norm",
        (
            dataclasses.replace(
                under(cifar10, "ResNet18-GN, clean, 10 clients, alpha=0.1, momentum 0.9"),
                data="cifar-10/fedbr-upright",
                model="resnet18-gn",
                protocol=cifar10.protocol.replace(momentum=0.9),
            ),
        ),
        (fedavg, fedprox, moon, Entry("VHL", "vhl"), fedbr),
    ),
    _grid(
        10,
        "Temperatures of component 2 on RotatedMNIST",
        _taus(
            mnist,
            "component 2 only, ",
            (0.0, 0.1, 0.5, 1.0, 2.0),
            acc="mean",
            rounds_to_80="rounds:0.80",
            rounds_to_85="rounds:0.85",
        ),
        Entry("FedBR component 2", "fedbr", {"fedbr.lam": 0.0}),
    ),
    _grid(
        11,
        "Temperatures on CIFAR-10",
        _taus(
            cifar10,
            "",
            (0.0, 0.5, 1.0, 2.0),
            acc="mean",
            rounds_to_55="rounds:0.55",
            rounds_to_60="rounds:0.60",
        ),
        fedbr,
    ),
    _grid(
        12,
        "Weight of component 1 on CIFAR-10",
        tuple(
            dataclasses.replace(
                under(
                    cifar10,
                    f"component 1 only, lambda={lam}",
                    acc="mean",
                    rounds_to_55="rounds:0.55",
                    rounds_to_60="rounds:0.60",
                ),
                settings={**cifar10.settings, "fedbr.lam": lam},
            )
            for lam in (0.1, 0.5, 1.0)
        ),
        Entry("FedBR component 1", "fedbr", {"fedbr.mu": 0.0}),
    ),
    Experiment(
        "fedbr/table13",
        PAPER,
        "T13",
        "More methods, and PACS",
        (under(mnist, ""), under(cifar10, ""), pacs),
        TABLE13,
    ),
    Experiment(
        "fedbr/table14",
        PAPER,
        "T14",
        "The worst client",
        tuple(under(c, "worst client, mean of top-5", acc="worst") for c in (mnist, cifar10, pacs)),
        TABLE13,
    ),
)
