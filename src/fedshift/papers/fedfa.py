"""FedFA's and FedFA+'s tables: Office-Caltech10, DomainNet, prostate MRI, CIFAR-10, Tiny-ImageNet.

Scores are of the last round; the paper does not name its rule. On Office-Caltech10 the lists of
images behind the published numbers are not public: a split of the same sizes gives, with the
released code, 76.5 for FedAvg, 78.6 for FedFA and 83.7 for FedBN (mean of four clients, last
round), which `rerun` shows beside the published numbers.
"""

from __future__ import annotations

import dataclasses

from fedshift.papers.experiment import Case, Entry, Experiment
from fedshift.protocol import Protocol

PAPER = "FedFA+"
OFFICE = {"A": "client:amazon", "C": "client:caltech10", "D": "client:dslr", "W": "client:webcam"}
DOMAINS = {
    "C": "client:clipart",
    "I": "client:infograph",
    "P": "client:painting",
    "Q": "client:quickdraw",
    "R": "client:real",
    "S": "client:sketch",
}
PROSTATE = {n: f"client:{n}" for n in ("BIDMC", "HK", "I2CVB", "BMC", "RUNMC", "UCL")}
MEAN = {"avg": "mean"}
RERUN = {"FedAvg": 76.5, "FedBN": 83.7, "FedFA^l (released)": 78.6, "FedFA^l": 79.9}
# As the release has it: one number for the variance over clients, statistics that start anew from
# the server's mean, variances divided by n - 1.
RELEASED = {"fedfa.server_variance": "scalar", "fedfa.memory": "server", "fedfa.unbiased": True}

office = Case(
    "Office-Caltech10",
    "4 clients, AlexNet, 400 rounds, global model top-1",
    "office-caltech10/fedfa",
    "alexnet-bn",
    Protocol(rounds=400, epochs=1, batch=32, lr=0.01, eval_every=10),
    {**OFFICE, "avg": "mean"},
    rerun=RERUN,
)
domainnet = dataclasses.replace(
    office,
    dataset="DomainNet",
    setting="6 clients, AlexNet, 400 rounds, global model top-1",
    data="domainnet/fedfa",
    protocol=office.protocol.replace(momentum=0.9, weight_decay=5e-4),
    columns={**DOMAINS, "avg": "mean"},
    rerun={},
)
prostate = dataclasses.replace(
    office,
    dataset="mini-ProstateMRI",
    setting="6 clients, U-Net, 500 rounds, Dice",
    data="prostate-mri/fedfa",
    model="unet",
    protocol=Protocol(
        rounds=500,
        epochs=1,
        batch=16,
        lr=1e-4,
        optimizer="adam",
        weight_decay=1e-4,
        eval_every=10,
    ),
    columns={**PROSTATE, "avg": "mean"},
    rerun={},
)


def cifar(alpha: float) -> Case:
    """A hundred clients, ten of them in a round."""
    return Case(
        "CIFAR-10",
        f"Dir({alpha:g})",
        f"cifar-10/fedfa-{alpha:g}",
        "resnet18-small",
        Protocol(rounds=100, epochs=10, batch=10, lr=0.1, participation=10, eval_every=5),
        {"top1": "mean"},
    )


def tiny(alpha: float) -> Case:
    """A hundred clients, five of them in a round."""
    return Case(
        "Tiny-ImageNet",
        f"Dir({alpha:g})",
        f"tiny-imagenet/fedfa-{alpha:g}",
        "resnet18-small",
        Protocol(rounds=500, epochs=5, batch=20, lr=0.1, participation=5, eval_every=10),
        {"top1": "mean"},
    )


femnist = Case(
    "FEMNIST",
    "3400 clients",
    "femnist",
    "resnet18-small",
    Protocol(rounds=1000, epochs=5, batch=32, lr=0.05, participation=50, eval_every=20),
    {"top1": "mean"},
)


def part(case: Case, setting: str, dataset: str = "") -> Case:
    """The same data and protocol under another table's name, of which the mean alone is printed."""
    columns = {"avg": "mean"}
    return dataclasses.replace(
        case, setting=setting, dataset=dataset or case.dataset, columns=columns
    )


def unseen(case: Case, dataset: str = "") -> Case:
    """Each client left out in turn, and scored."""
    turned = {n: r.replace("client:", "unseen:") for n, r in case.columns.items() if n != "avg"}
    return dataclasses.replace(
        case,
        setting="leave-one-client-out, unseen client",
        dataset=dataset or case.dataset,
        columns={**turned, "avg": "unseen-mean"},
        rerun={},
    )


fedavg = Entry("FedAvg", "fedavg")
lower = Entry("FedFA^l", "fedfa")
released = Entry("FedFA^l (released)", "fedfa", RELEASED, published="FedFA^l")
plus = Entry("FedFA+", "fedfa-plus")
swin = Entry("FedFA+ (Swin-T)", "fedfa-plus", model="swin-t")
BASELINES = (
    fedavg,
    Entry("FedAvgM", "fedavgm"),
    Entry("FedProx", "fedprox", {"fedprox.mu": 0.01}),
    Entry("FedRobust", "fedrobust"),
    Entry("FedBN", "fedbn"),
    Entry("FedMix", "fedmix"),
    Entry("FedSAM", "fedsam"),
    Entry("FedSR", "fedsr"),
    Entry("FPL", "fpl"),
)
TABLE3 = (*BASELINES, lower, released, plus, swin)
NOT_HERE = "needs images in another style to be exchanged between clients; not among our methods"
TABLE6 = (
    *(e for e in BASELINES if e.label not in ("FedAvgM", "FedSAM")),
    Entry("CCST", why=NOT_HERE),
    Entry("FedDG", why=NOT_HERE),
    Entry("FedGA", "feddg-ga"),
    lower,
    plus,
    swin,
)
TABLE5 = tuple(e for e in BASELINES if e.label not in ("FedSR", "FPL"))
LAYERS: tuple[str, ...] = (
    "1",
    "1 2",
    "1 2 3",
    "1 2 3 4",
    "1 2 3 4 5",
    "2 3 4 5",
    "1 2 4 5",
    "3 4 5",
    "4 5",
)
LAYERS += ("5", "1 5", "2 3 4", "2 3", "3 4", "3")


def _layers(chosen: str) -> Entry:
    return Entry(f"FFA@{{{chosen}}}", "fedfa", {"fedfa.layers": chosen.replace(" ", ",")})


def _ablation(backbone: str, model: str) -> tuple[Entry, ...]:
    names = {"FedAvg": "fedavg", "FedFA^l": "fedfa", "FedFA^h": "fedfa-h", "FedFA+": "fedfa-plus"}
    return tuple(Entry(f"{n}{backbone}", m, model=model) for n, m in names.items())


AUGMENTATIONS = {
    "Mixup": "mixup",
    "M-Mixup": "manifold-mixup",
    "MixStyle": "mixstyle",
    "MoEx": "moex",
    "DAC-SC": "dac-sc",
}
three = (office, domainnet, part(prostate, "", "ProstateMRI"))


def _three(setting: str) -> tuple[Case, ...]:
    return tuple(part(case, setting) for case in three)


def _experiment(
    number: int, title: str, cases: tuple[Case, ...], entries: tuple[Entry, ...], note: str = ""
) -> Experiment:
    return Experiment(f"fedfa/table{number}", PAPER, f"T{number}", title, cases, entries, note=note)


EXPERIMENTS = (
    _experiment(
        3,
        "Methods on Office-Caltech10 and DomainNet",
        (office, domainnet),
        TABLE3,
        "FedBN's scores are of each client's own model.",
    ),
    _experiment(
        4,
        "Methods on prostate MRI",
        (prostate,),
        (
            *BASELINES[:8],
            Entry("FedHarmo", "harmofl"),
            *BASELINES[8:],
            plus,
            dataclasses.replace(swin, method="", why="segmentation with a transformer: no recipe"),
        ),
    ),
    _experiment(
        5,
        "Methods under label skew and with many clients",
        (cifar(0.6), cifar(0.3), tiny(0.6), tiny(0.3), femnist),
        (*TABLE5, plus, swin),
    ),
    _experiment(
        6,
        "Clients that never took part",
        (unseen(office), unseen(domainnet), unseen(prostate, "ProstateMRI")),
        TABLE6,
    ),
    _experiment(
        7,
        "Parts of FedFA+",
        _three("component ablation"),
        (*_ablation("", ""), *_ablation(" (Swin-T)", "swin-t"), released),
    ),
    _experiment(
        8,
        "Normalisation layers under FedFA",
        _three("normalisation layer"),
        (
            Entry("GroupNorm", "fedfa", model="alexnet-gn"),
            Entry("LayerNorm", "fedfa", model="alexnet-ln"),
            Entry("BatchNorm", "fedfa"),
        ),
        "Its row BatchNorm equals FedFA^l of table 7, though the caption says FedFA+.",
    ),
    _experiment(
        9,
        "Where the jitter's variance comes from",
        _three("variance source"),
        (
            fedavg,
            Entry("FedFA-R", "fedfa", {"fedfa.variance": "random"}),
            Entry("FedFA-C", "fedfa", {"fedfa.variance": "client"}),
            lower,
            released,
        ),
    ),
    _experiment(
        10,
        "FedFA beside and with augmentations",
        _three("augmentation comparison"),
        (
            fedavg,
            *(Entry(n, m) for n, m in AUGMENTATIONS.items()),
            lower,
            *(Entry(f"FedFA^l+{n}", f"fedfa+{m}") for n, m in AUGMENTATIONS.items()),
        ),
    ),
    _experiment(
        11,
        "Fusion of the two variances",
        _three("variance fusion"),
        (
            Entry("Direct fusion", "fedfa", {"fedfa.fusion": "direct"}),
            Entry("Adaptive fusion", "fedfa"),
        ),
    ),
    _experiment(
        12,
        "Layers with FFA",
        (
            part(office, "eligible layers, AlexNet"),
            part(domainnet, "eligible layers, AlexNet"),
            dataclasses.replace(part(domainnet, "eligible layers, ResNet-50"), model="resnet50"),
            dataclasses.replace(
                part(domainnet, "eligible layers, DenseNet-100"), model="densenet100"
            ),
            part(prostate, "eligible layers, U-Net", "ProstateMRI"),
        ),
        (fedavg, *map(_layers, LAYERS)),
    ),
    Experiment(
        "fedfa/noise",
        PAPER,
        "text-6.2",
        "Noise on shared statistics",
        tuple(
            dataclasses.replace(
                part(office, f"Gaussian noise on shared statistics std={s:g}"),
                settings={"fedfa-plus.noise": s},
                rerun={},
            )
            for s in (0, 0.1, 0.2, 0.3, 0.4)
        ),
        (plus,),
    ),
)
