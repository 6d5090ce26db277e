"""FedGenP's tables: CelebA over participation, MNIST and EMNIST over label skew, local steps.

Twenty local steps a round (the paper's "epochs"), SGD at 0.01 times 0.99 a round, means by samples.
"Global" is the aggregated model on all clients' test images together, "personalized" each client's
model as it left training on its own test images, right answers over all of these. (The released
code scores so the clients of the last round alone.) The paper's FedGenP is run in several readings,
since the reversal of the released code has no effect: "capped" is this package's default, "as
coded" the same loss with the code's generator and batch norm, "released" the code's loss too.
"""

from __future__ import annotations

from fedshift.papers.experiment import Case, Entry, Experiment
from fedshift.protocol import Protocol

PAPER = "FedGenP"
COLUMNS = {"global_acc": "pooled", "personalized_acc": "personal-pooled"}
# What the released code does beside its loss: the generator's spread and noise, batch norm at home.
CODE = {"fedgenp.vae": "code", "fedgenp.noise": "uniform", "fedgenp.bn": "client"}
RELEASED = {"fedgenp.grl": "released", "fedgenp.label_weights": "counts", **CODE}
PERSONAL = {"pfedavg.when": "rounds"}
ENTRIES = (
    Entry("FedAvg", "pfedavg", PERSONAL),
    Entry("FedEnsemble", "fedensemble+pfedavg", PERSONAL),
    Entry("FedGen", "fedgen+pfedavg", PERSONAL),
    Entry("FedGenP (capped)", "fedgenp", published="FedGenP"),
    Entry("FedGenP (released)", "fedgenp", RELEASED, published="FedGenP"),
    Entry("FedGenP (capped, as coded)", "fedgenp", CODE, published="FedGenP"),
    Entry("FedGenP (uncapped)", "fedgenp", {"fedgenp.grl": "uncapped"}, published="FedGenP"),
)


def protocol(rounds: int, participation: float = 1.0, steps: int = 20) -> Protocol:
    """The paper's, with the code's decay of the learning rate."""
    return Protocol(
        rounds=rounds,
        steps=steps,
        batch=32,
        lr=0.01,
        schedule="exponential",
        decay=0.99,
        weights="samples",
        participation=participation,
        eval_every=10,
    )


def _mnist(setting: str, variant: str, rerun: dict[str, float], participation: float = 1) -> Case:
    return Case(
        "MNIST",
        setting,
        f"mnist/fedgenp-{variant}",
        "fedgenp-cnn",
        protocol(300, participation),
        COLUMNS,
        rerun=rerun,
    )


def _rerun(*values: float) -> dict[str, float]:
    names = ("FedAvg", "FedGen", "FedGenP (released)", "FedGenP (uncapped)", "FedGenP (capped)")
    found = dict(zip(names, values, strict=True))
    return {**found, "FedGenP (capped, as coded)": found["FedGenP (capped)"]}


MNIST = (
    _mnist("100% data, 20 active, alpha=0.1", "100-0.1", _rerun(90.8, 95.9, 95.9, 83.6, 94.2)),
    _mnist("100% data, 20 active, alpha=1", "100-1", _rerun(94.1, 97.7, 97.6, 92.2, 97.2)),
    _mnist("10% data, 10 active, alpha=1", "10-1", _rerun(93.1, 94.4, 94.7, 9.4, 94.6), 10),
    _mnist("10% data, 10 active, alpha=10", "10-10", _rerun(93.6, 95.1, 95.4, 9.9, 95.4), 10),
    _mnist("5% data, 20 active, alpha=1", "5-1", _rerun(90.9, 91.5, 91.7, 91.6, 92.5)),
    _mnist("5% data, 20 active, alpha=10", "5-10", _rerun(91.8, 92.3, 92.6, 92.1, 93.3)),
)
EMNIST = tuple(
    Case(
        "EMNIST",
        f"{percent}% data, alpha={alpha}, 100 rounds",
        f"emnist/fedgenp-{percent}-{alpha}",
        "fedgenp-cnn",
        protocol(100),
        COLUMNS,
        {"fedgenp.beta": 1.0, "fedgenp.gen_lr": 1e-4},
    )
    for percent, alpha in ((100, 0.1), (100, 1), (10, 0.01), (10, 1))
)
CELEBA = tuple(
    Case(
        "CelebA",
        f"r={share:g}, 25 clients, 100 rounds",
        "celeba/fedgenp",
        "fedgenp-cnn-celeba",
        protocol(100, share),
        COLUMNS,
        {"fedgenp.hidden": 128},
    )
    for share in (0.2, 0.4, 0.6, 0.8, 1.0)
)
STEPS = tuple(
    Case(
        "MNIST",
        f"5% data, 20 clients, alpha=10, 50 rounds, local epochs={steps}",
        "mnist/fedgenp-5-10",
        "fedgenp-cnn",
        protocol(50, steps=steps),
        {"global_acc": "pooled"},
    )
    for steps in (20, 30, 40, 50)
)
EXPERIMENTS = (
    Experiment(
        "fedgenp/table3", PAPER, "T3", "CelebA, participation of 25 clients", CELEBA, ENTRIES
    ),
    Experiment(
        "fedgenp/table4",
        PAPER,
        "T4",
        "MNIST, amount of data and label skew",
        MNIST,
        ENTRIES,
        note="The paper's 10 % and 5 % are half of that, by the rule of the released code.",
    ),
    Experiment("fedgenp/table5", PAPER, "T5", "EMNIST, amount and label skew", EMNIST, ENTRIES),
    Experiment(
        "fedgenp/table6",
        PAPER,
        "T6",
        "MNIST, local steps",
        STEPS,
        tuple(e for e in ENTRIES if e.method == "fedgenp"),
    ),
)
