"""Digits of five kinds, a client each: MNIST, SVHN, USPS, SynthDigits, MNIST-M."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import Tensor

from fedshift import keys
from fedshift.data.augment import Pipeline
from fedshift.data.sets import cutting, digit_sources, pixels, reading
from fedshift.errors import BadData
from fedshift.federation import Client, Federation, Samples

DOMAINS = ("mnist", "svhn", "usps", "synth-digits", "mnist-m")  # in FedBN's order
FRAUG = ("mnist", "mnist-m", "svhn", "usps")
PRESENT = {DOMAINS: "digits/present", FRAUG: "digits/fraug-present"}  # what leaves absent ones out
TRAIN, VAL = 743, 186  # a tenth of USPS's training pool, and a quarter as many to select with


def fedbn(name: str, seed: int = 0, absent: str = "refuse") -> Federation:
    """FedBN's five domains: 28 x 28, 743 images each to train on, a fifth of the set to test on.

    Training and test images of a set are pooled and cut 80 to 20, class by class; from the larger
    part come the training images and, which FedBN has not, 186 for validation.

    Args:
        name: of the federation.
        seed: what the cuts follow from.
        absent: "refuse" where one of the five sets is missing, or "leave-out".
    """
    clients = []
    for domain in _domains(DOMAINS, absent):
        pool = reading.whole(digit_sources.load(domain))
        n = len(pool)
        order = cutting.drawn(keys.fold(seed, "digits", domain), n)
        cut = cutting.pieces(pool.y, (n - int(0.8 * n), TRAIN, VAL), order, f"'{domain}'")
        clients.append(_client(domain, pool, (*cut[1:], cut[0]), 28))
    return Federation(
        name,
        tuple(clients),
        tuple("0123456789"),
        Pipeline(mean=(0.5,), std=(0.5,)),
        recommended={"model": "digits-cnn", "rounds": 100, "batch": 32, "lr": 0.01},
    )


def fraug(name: str, seed: int = 0, absent: str = "refuse") -> Federation:
    """FRAug's four domains: 32 x 32, a hundredth of the data to train on.

    A set's images are pooled; a tenth is for testing, a tenth of the rest for validation, and of
    what is then left one in a hundred trains.
    """
    clients = []
    for domain in _domains(FRAUG, absent):
        pool = reading.whole(digit_sources.load(domain))
        test, val, train = tenths(len(pool), 0.01)
        order = cutting.drawn(keys.fold(seed, "digits", domain), len(pool))
        cut = cutting.pieces(pool.y, (test, val, train), order, f"'{domain}'")
        clients.append(_client(domain, pool, (cut[2], cut[1], cut[0]), 32))
    return Federation(
        name,
        tuple(clients),
        tuple("0123456789"),
        pixels.DIGITS,
        recommended={
            "model": "digits-cnn", "rounds": 200, "steps": 20, "batch": 64, "lr": 0.01,
            "momentum": 0.5, "weights": "samples", "reset_optimizer": False, "select": "best-val",
        },
    )  # fmt: skip


def tenths(n: int, portion: float) -> tuple[int, int, int]:
    """FRAug's sizes of test, validation and training for a pool of n.

    >>> tenths(9298, 0.01)
    (930, 837, 75)
    """
    test = n - int(0.9 * n)
    val = (n - test) - int(0.9 * (n - test))
    return test, val, int(portion * (n - test - val))


def _client(name: str, pool: Samples, cut: Sequence[Tensor], side: int) -> Client:
    splits = (pixels.rgb(pixels.resized(pool.take(piece), side)) for piece in cut)
    return Client(name, *splits)


def _domains(wanted: tuple[str, ...], absent: str) -> list[str]:
    """Those of the domains that are there; unless told otherwise, one that is not is an error."""
    there = [domain for domain in wanted if digit_sources.present(domain)]
    missing = [domain for domain in wanted if domain not in there]
    if missing and absent == "refuse":
        try:
            digit_sources.load(missing[0])  # says what to put where
        except BadData as error:
            raise BadData(
                f"{error}; or run with the digits that are there, as '{PRESENT[wanted]}'"
            ) from None
    if len(there) < 2:
        raise BadData(
            f"of the digits there are {', '.join(there) or 'none'}: a federation needs two or more "
            f"of {', '.join(wanted)} under $FEDSHIFT_DATA"
        )
    if missing:
        warnings.warn(
            f"the digits are a federation of {len(there)} clients here, without "
            f"{', '.join(missing)}: scores cannot be compared with published ones",
            stacklevel=3,
        )
    return there
