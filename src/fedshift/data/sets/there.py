"""Which data sets have a folder under $FEDSHIFT_DATA: a quick look, which opens nothing."""

from __future__ import annotations

from fedshift.data.sets import place

FOLDERS = {
    "cifar-10": ("cifar-10", "cifar-10-batches-bin"),
    "cifar-100": ("cifar-100", "cifar-100-binary"),
    "office-caltech10": ("office-caltech10", "office-caltech-10"),
    "office-home": ("office-home", "OfficeHomeDataset_10072016"),
    "prostate-mri": ("prostate-mri", "prostate"),
    "rxrx1": ("rxrx1", "rxrx1_v1.0"),
    "tiny-imagenet": ("tiny-imagenet", "tiny-imagenet-200"),
    "rotated-mnist": ("mnist",),
}


def missing(name: str) -> tuple[str, ...]:
    """The sets that a federation of the catalogue is made of and that are not there.

    >>> missing("no-such-set")
    ('no-such-set',)
    """
    base, _, variant = name.partition("?")[0].partition("/")
    if base == "digits":
        from fedshift.data.sets.digit_domains import DOMAINS, FRAUG
        from fedshift.data.sets.digit_sources import present

        wanted = FRAUG if variant.startswith("fraug") else DOMAINS
        return tuple(d for d in wanted if not present(d))
    return () if place.find(*FOLDERS.get(base, (base,))) else (base,)
