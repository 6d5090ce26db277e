"""Every federation of the papers' data sets by name: one line each, and nothing is imported.

A name is that of a set, or of a set and a paper's protocol on it (`digits/fraug`).
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedshift.data.source import describe
from fedshift.errors import BadValue

if TYPE_CHECKING:
    from fedshift.federation import Federation


@dataclasses.dataclass(frozen=True)
class Entry:
    """What a federation is, and the function of `fedshift.data.sets` that makes it."""

    about: str
    module: str
    function: str
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    takes: tuple[str, ...] = ("seed",)

    def make(self, name: str, options: Mapping[str, Any]) -> Federation:
        """The federation, with the user's options."""
        for option in options:
            if option not in self.takes:
                raise BadValue(
                    f"'{name}' has no option '{option}': it takes {', '.join(self.takes)}"
                )
        module = importlib.import_module(f"fedshift.data.sets.{self.module}")
        made: Federation = getattr(module, self.function)(name, **self.fixed, **options)
        return dataclasses.replace(made, source=describe(name, **options))


IMAGES = ("seed", "size")  # what a set of image files takes

CATALOGUE: dict[str, Entry] = {
    "digits": Entry(
        "MNIST, SVHN, USPS, SynthDigits, MNIST-M: 743 training images each (FedBN)",
        "digit_domains", "fedbn",
    ),
    "digits/present": Entry(
        "As digits, of those sets that are there", "digit_domains", "fedbn", {"absent": "leave-out"}
    ),
    "digits/fraug": Entry(
        "MNIST, MNIST-M, SVHN, USPS: 1 % of each to train on (FRAug)", "digit_domains", "fraug"
    ),
    "digits/fraug-present": Entry(
        "As digits/fraug, of those sets that are there",
        "digit_domains", "fraug", {"absent": "leave-out"},
    ),
    "rotated-mnist": Entry(
        "MNIST at ten angles, a client each, the same classes everywhere",
        "rotated", "rotated_mnist",
    ),
    "rotated-mnist/fedbr": Entry(
        "MNIST at ten angles, few classes a client: Dirichlet(0.1 p) (FedBR's code)",
        "rotated", "rotated_mnist", {"alpha": 0.1},
    ),
    "rotated-mnist/fedbr-even": Entry(
        "As rotated-mnist/fedbr, with Dirichlet(0.1) instead of Dirichlet(0.1 p)",
        "rotated", "rotated_mnist", {"alpha": 0.1, "concentration": "even"},
    ),
    "mnist": Entry(
        "MNIST dealt evenly to 20 clients", "handwriting", "federation", {"of": "mnist"}
    ),
    **{
        f"mnist/fedgenp-{percent}-{alpha:g}": Entry(
            f"MNIST, 20 clients, {percent} % of it, label skew Dirichlet({alpha:g}) (FedGenP)",
            "handwriting", "federation", {"of": "mnist", "percent": percent, "alpha": alpha},
        )
        for percent, alpha in ((100, 0.1), (100, 1.0), (10, 1.0), (10, 10.0), (5, 1.0), (5, 10.0))
    },
    "emnist": Entry(
        "EMNIST's letters dealt evenly to 20 clients", "handwriting", "federation", {"of": "emnist"}
    ),
    **{
        f"emnist/fedgenp-{percent}-{alpha:g}": Entry(
            f"EMNIST's letters, 20 clients, {percent} %, label skew Dirichlet({alpha:g}) (FedGenP)",
            "handwriting", "federation", {"of": "emnist", "percent": percent, "alpha": alpha},
        )
        for percent, alpha in ((100, 0.1), (100, 1.0), (10, 0.01), (10, 1.0))
    },
    "cifar-10": Entry(
        "CIFAR-10 dealt evenly to 10 clients", "cifar", "fedbr", {"alpha": 0.0, "rotated": False}
    ),
    **{
        f"cifar-10/fedfa-{alpha:g}": Entry(
            f"CIFAR-10, 100 clients, label skew Dirichlet({alpha:g}) (FedFA)",
            "cifar", "fedfa", {"alpha": alpha},
        )
        for alpha in (0.6, 0.3)
    },
    "cifar-10/fedbr": Entry(
        "CIFAR-10, 10 clients, few classes and few of ten angles each (FedBR)", "cifar", "fedbr"
    ),
    "cifar-10/fedbr-upright": Entry(
        "As cifar-10/fedbr, not rotated", "cifar", "fedbr", {"rotated": False}
    ),
    "cifar-10/fedbr-100": Entry(
        "As cifar-10/fedbr, 100 clients of which 10 take part", "cifar", "fedbr", {"clients": 100}
    ),
    "cifar-100": Entry(
        "CIFAR-100 dealt evenly to 10 clients",
        "cifar", "fedbr", {"classes": 100, "alpha": 0.0, "rotated": False},
    ),
    "cifar-100/fedbr": Entry(
        "CIFAR-100, 10 clients, label skew Dirichlet(0.1) (FedBR)",
        "cifar", "fedbr", {"classes": 100, "rotated": False},
    ),
    "office-caltech10": Entry(
        "Office-Caltech10: amazon, caltech10, dslr, webcam, with flips and rotations (FedBN)",
        "office_caltech", "federation", takes=IMAGES,
    ),
    "office-caltech10/fedfa": Entry(
        "As office-caltech10, without augmentation (FedFA's code)",
        "office_caltech", "federation", {"augment": False}, IMAGES,
    ),
    "pacs": Entry(
        "PACS: art, cartoon, photo, sketch by the official lists, 224 pixels",
        "pacs", "federation", takes=IMAGES,
    ),
    "pacs/fraug": Entry(
        "As pacs, 10 % of it to train on (FRAug)", "pacs", "federation", {"portion": 0.1}, IMAGES
    ),
    "pacs/fedbr": Entry(
        "PACS, 8 clients: each domain's first four and last three classes, 32 pixels (FedBR)",
        "pacs", "fedbr",
    ),
    "pacs/fedlsi": Entry(
        "PACS for --hold-out, 256 pixels: test data are the whole domain (FedLSI)",
        "pacs", "federation", {"size": 256, "whole_test": True},
    ),
    "office-home": Entry(
        "Office-Home: art, clipart, product, real-world, 65 classes, 224 pixels",
        "office_home", "federation", takes=IMAGES,
    ),
    "office-home/fraug": Entry(
        "As office-home, 10 % of it to train on (FRAug)",
        "office_home", "federation", {"portion": 0.1}, IMAGES,
    ),
    "office-home/fedlsi": Entry(
        "Office-Home for --hold-out, 256 pixels: test data are the whole domain (FedLSI)",
        "office_home", "federation", {"size": 256, "whole_test": True},
    ),
    "domainnet": Entry(
        "DomainNet: six styles, FedBN's ten classes, 256 pixels", "domainnet", "ten", takes=IMAGES
    ),
    "domainnet/fedfa": Entry(
        "As domainnet, 0.4 of it to train on (FedFA's tables)",
        "domainnet", "ten", {"ratio": 0.4}, IMAGES,
    ),
    "domainnet/fedfa-code": Entry(
        "As domainnet, 0.6 of it to train on (FedFA's released configuration)",
        "domainnet", "ten", {"ratio": 0.6}, IMAGES,
    ),
    "domainnet/fedlsi": Entry(
        "DomainNet, ten classes, for --hold-out: test data are the whole domain (FedLSI)",
        "domainnet", "ten", {"whole_test": True}, IMAGES,
    ),
    "domainnet/full": Entry(
        "DomainNet: six styles, all 345 classes by the official lists, 64 pixels",
        "domainnet", "full", takes=IMAGES,
    ),
    "tiny-imagenet": Entry(
        "Tiny-ImageNet dealt evenly to 100 clients", "tiny_imagenet", "federation"
    ),
    **{
        f"tiny-imagenet/fedfa-{alpha:g}": Entry(
            f"Tiny-ImageNet, 100 clients, label skew Dirichlet({alpha:g}) (FedFA)",
            "tiny_imagenet", "federation", {"alpha": alpha},
        )
        for alpha in (0.6, 0.3)
    },
    "femnist": Entry("FEMNIST: a client for each writer, 62 characters (FedFA)", "leaf", "femnist"),
    "celeba": Entry("CelebA: 25 clients of ten celebrities, who smiles?", "leaf", "celeba"),
    "celeba/fedgenp": Entry(
        "As celeba, the network sees 0 to 255 (FedGenP)", "leaf", "celeba", {"raw": True}
    ),
    "rxrx1": Entry(
        "RxRx1: four kinds of cells, four clients each, 48 classes (FRAug)",
        "rxrx1", "federation", takes=IMAGES,
    ),
    **{
        f"rxrx1/fraug-{4 * groups}": Entry(
            f"As rxrx1, {groups} clients for each kind of cells (FRAug)",
            "rxrx1", "federation", {"groups": groups}, IMAGES,
        )
        for groups in (2, 3, 4)
    },
    "prostate-mri": Entry(
        "ProstateMRI: six hospitals, masks of the prostate (FedFA)", "prostate", "federation"
    ),
    "prostate-mri/mini": Entry(
        "As prostate-mri, 10 % of the slices to train on (FedFA)",
        "prostate", "federation", {"ratio": 0.1},
    ),
}  # fmt: skip
