"""Differential privacy of clients: updates are clipped where they arise, and get Gaussian noise.

What a client uploads in a round is at most two vectors: its update of the model, and what its
methods report. Each is scaled down to a largest Euclidean norm before it leaves. With
`where="local"` the client adds the noise, and the server sees nothing else; with `"central"` the
server adds it to the mean, and its method sees nothing but that (`fedshift.sealed`). The arithmetic
is the same on every engine and on real machines.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from fedshift import keys
from fedshift.errors import BadRun
from fedshift.privacy import Privacy
from fedshift.tree import Tree

_SLACK = 1e-12  # relative; more than the rounding of a sum of squares in float64
_PIECE = 1 << 20  # numbers drawn at a time from the operating system
Draw = Callable[[str, tuple[int, ...]], Tensor]  # standard normals [K, ...] by name


# ---------------------------------------------------------------------------- the client's half


def leave(
    privacy: Privacy,
    model: Tree,
    extras: Tree,
    received: Tree,
    trained: tuple[str, ...],
    key: Tensor,
) -> tuple[Tree, Tree]:
    """What may leave of clients' models and extras [K, ...]; `key` [K] is of their trips.

    Each client's distance of the trained tensors to those `received` ([K, ...], or [1, ...] where
    all got the same) is scaled to a norm of `clip` at most; other tensors leave as they came. A
    client at NaN or infinity sends no change: that it is missing would tell of its data.
    """
    for name, t in extras.items():
        _check_extra(privacy, name, t)
    blocks = bool(model) + bool(extras)
    draw = _drawn(privacy, keys.fold_in(key, "privacy")) if privacy.local else None
    moved = {n: (t, received[n]) for n, t in model.items() if n in trained}
    beside = {n: (t, torch.zeros_like(t[:1])) for n, t in extras.items()}
    still = {n: received[n].expand_as(t).clone() for n, t in model.items() if n not in moved}
    change, extra = privacy.clip, privacy.clip_extras
    found = still | _clipped(moved, change, deviation(privacy, change, blocks), draw)
    return (
        {n: found[n] for n in model},
        _clipped(beside, extra, deviation(privacy, extra, blocks), draw),
    )


def deviation(privacy: Privacy, clip: float, blocks: int) -> float:
    """The standard deviation of the noise on a sum over clients of one of the vectors they upload.

    Two vectors share the budget: the sum of (clip / deviation)^2 over them is 1 / noise^2.

    >>> deviation(Privacy(noise=3.0), 0.5, 1)
    1.5
    """
    return privacy.noise * clip * math.sqrt(blocks)


def _check_extra(privacy: Privacy, name: str, tensor: Tensor) -> None:
    if not privacy.clip_extras:
        raise BadRun(
            f"'{name}' is uploaded beside the model, and privacy does not know how large it may "
            "be: say what its norm may be (--dp-clip-extras), or take another method"
        )
    if not tensor.is_floating_point():
        raise BadRun(
            f"'{name}' is uploaded in whole numbers, to which no noise can be added: take another "
            "method, or leave privacy off"
        )


def _clipped(
    pairs: Mapping[str, tuple[Tensor, Tensor]], clip: float, noise: float, draw: Draw | None
) -> Tree:
    """Pairs of (tensor [K, ...], origin): each row's distance to its origin clipped, then noised.

    Norms are taken in float64, and room is left for the rounding of the result to its own type, so
    that a norm measured on what leaves is never above the clip.
    """
    if not pairs:
        return {}
    norm = _norms(t.double() - origin.double() for t, origin in pairs.values())
    size = _norms(origin.double() for _, origin in pairs.values())
    rounding = max(torch.finfo(t.dtype).eps for t, _ in pairs.values()) / 2
    limit = clip * (1 - _SLACK) - rounding * (size + clip)
    if bool((limit <= 0).any()):
        raise BadRun(
            f"a clip of {clip:g} is lost in the rounding of the model's numbers: take a larger "
            "one (--dp-clip), or --dtype float64"
        )
    good = torch.isfinite(norm)
    scale = torch.where(norm > limit, limit / norm, 1.0)
    found: Tree = {}
    for name, (t, origin) in pairs.items():
        rows = (-1, *(1,) * (t.dim() - 1))
        change = (t.double() - origin.double()) * scale.reshape(rows)
        change = torch.where(good.reshape(rows), change, 0.0)
        if draw is not None and noise:
            change = change + noise * draw(name, tuple(t.shape[1:]))
        found[name] = (origin.double() + change).to(t.dtype)
    return found


def _norms(parts: Iterable[Tensor]) -> Tensor:
    """For each row, the norm of all parts [K, ...] together."""
    squares = [t.reshape(len(t), -1).square().sum(dim=1) for t in parts]
    return torch.stack(squares).sum(dim=0).sqrt()


# ---------------------------------------------------------------------------- the server's half


def central(
    privacy: Privacy,
    model: Tree,
    combined: Tree,
    kinds: Mapping[str, str],
    trained: tuple[str, ...],
    clients: int,
    key: Tensor,
) -> tuple[Tree, Tree]:
    """Plain means over so many clients (sums, where `kinds` says so) with noise on them."""
    blocks = bool(model) + bool(combined)
    draw = _drawn(privacy, keys.fold_in(key.reshape(1), "privacy"))

    def noisy(name: str, t: Tensor, clip: float, count: int) -> Tensor:
        spread = deviation(privacy, clip, blocks) / count
        return (t.double() + spread * draw(name, tuple(t.shape))[0]).to(t.dtype)

    change, extra = privacy.clip, privacy.clip_extras
    return (
        {n: noisy(n, t, change, clients) if n in trained else t for n, t in model.items()},
        {n: noisy(n, t, extra, 1 if kinds[n] == "sum" else clients) for n, t in combined.items()},
    )


# ---------------------------------------------------------------------------- noise


def _drawn(privacy: Privacy, key: Tensor) -> Draw:
    """Draws from keys [K], or from the system; in float64, since float32 would cut the tails."""
    if privacy.source == "system":
        return lambda name, shape: system_normal((len(key), *shape)).to(key.device)
    return lambda name, shape: keys.normal(keys.fold_in(key, name), shape, torch.float64)


def system_normal(shape: tuple[int, ...]) -> Tensor:
    """Standard normals in float64 from the operating system's randomness, which nobody can repeat.

    >>> system_normal((2, 3)).shape
    torch.Size([2, 3])
    """
    flat = torch.empty(math.prod(shape), dtype=torch.float64)
    for start in range(0, len(flat), _PIECE):
        piece = flat[start : start + _PIECE]
        bits = torch.frombuffer(bytearray(os.urandom(16 * len(piece))), dtype=torch.int64)
        one, two = (((bits >> 11) & ((1 << 53) - 1)).double() * 2.0**-53).reshape(2, -1)
        piece.copy_(torch.sqrt(-2.0 * torch.log1p(-one)) * torch.cos(2.0 * math.pi * two))
    return flat.reshape(shape)
