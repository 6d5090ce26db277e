"""Federations made from federations: fewer samples, turned images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import overload

import torch
from torch import Tensor

from fedshift import keys
from fedshift.data.partition import SPLITS
from fedshift.data.warp import rotate_nearest
from fedshift.errors import BadData, BadValue, UnknownName
from fedshift.federation import Client, Federation, Samples


@overload
def subsample(
    owner: Client, amount: float, *, seed: int = 0, splits: Sequence[str] = ("train",)
) -> Client: ...


@overload
def subsample(
    owner: Federation, amount: float, *, seed: int = 0, splits: Sequence[str] = ("train",)
) -> Federation: ...


def subsample(
    owner: Client | Federation,
    amount: float,
    *,
    seed: int = 0,
    splits: Sequence[str] = ("train",),
) -> Client | Federation:
    """A client or federation with fewer samples; smaller amounts are parts of larger ones.

    Args:
        owner: a client, or a federation (then every client is thinned out).
        amount: a share (a float up to 1.0) or a number of samples per client (an int).
        seed: what the choice follows from.
        splits: which splits to thin out.
    """
    if not amount > 0 or (not isinstance(amount, int) and amount > 1):
        raise BadValue(f"subsample amount is {amount}: give a share up to 1.0, or a whole number")
    for name in splits:
        if name not in SPLITS:
            raise UnknownName("split", name, SPLITS)

    def thin(client: Client) -> Client:
        chosen = {name: _choose(client, name, amount, seed) for name in splits}
        return Client(client.name, *(chosen.get(s, getattr(client, s)) for s in SPLITS))

    if isinstance(owner, Federation):
        return owner.map(thin)
    return thin(owner)


def _choose(client: Client, name: str, amount: float, seed: int) -> Samples:
    samples: Samples = getattr(client, name)
    n = len(samples)
    keep = min(n, amount) if isinstance(amount, int) else math.floor(amount * n + 0.5)
    key = keys.as_tensor(keys.fold(seed, "subsample", client.name, name))
    return samples.take(keys.permutation(key, n)[: max(1, keep)].sort().values)


def rotate_clients(fed: Federation, degrees: Sequence[float] | Mapping[str, float]) -> Federation:
    """Every client's images turned counter-clockwise by an angle of its own, pixels copied whole.

    Args:
        fed: a federation of images.
        degrees: the angles by name, or in the order of the clients; RotatedMNIST has
            `range(0, 150, 15)`.
    """
    if not isinstance(degrees, Mapping):
        if len(degrees) != len(fed.clients):
            raise BadValue(
                f"{len(degrees)} angles for {len(fed.clients)} clients: give one per client"
            )
        degrees = dict(zip(fed.names, degrees))
    for name in degrees:
        fed[name]
    angles = dict(degrees)

    def turn(client: Client) -> Client:
        angle = torch.tensor([math.radians(angles.get(client.name, 0.0))], dtype=torch.float64)
        return Client(client.name, *(_turn(getattr(client, s), angle) for s in SPLITS))

    return fed.map(turn)


def _turn(samples: Samples, angle: Tensor) -> Samples:
    if samples.x.ndim != 4:
        raise BadData(
            f"only images [N, C, H, W] can be rotated, but samples are {list(samples.x.shape)}"
        )
    y = samples.y
    if y.ndim == 3:  # labels of pixels turn along
        y = rotate_nearest(y[:, None], angle)[:, 0]
    return Samples(rotate_nearest(samples.x, angle), y)
