"""Layers of normalisation by name, for networks that are known with several."""

from __future__ import annotations

from torch import nn

from fedshift.errors import BadModel

KINDS = ("batch", "group", "layer", "none")


def norm(kind: str, channels: int, groups: int = 32, maps: bool = True) -> dict[str, nn.Module]:
    """A norm as the parts of a stage: {"norm": layer}, or nothing for "none".

    Args:
        kind: "batch", "group", "layer" (over channels and positions of a sample) or "none".
        channels: of what it normalises.
        groups: of channels, where the kind is "group".
        maps: whether it normalises maps [B, C, H, W] (else vectors [B, C]).

    >>> norm("group", 64)["norm"].num_groups, norm("none", 64)
    (32, {})
    """
    if kind not in KINDS:
        raise BadModel(f"norm '{kind}' is not known: choose {', '.join(KINDS)}")
    if kind == "none":
        return {}
    if kind == "batch":
        return {"norm": nn.BatchNorm2d(channels) if maps else nn.BatchNorm1d(channels)}
    count = 1 if kind == "layer" else groups
    if count < 1 or channels % count:
        raise BadModel(
            f"{channels} channels do not fall into {count} groups: take a divisor as groups"
        )
    return {"norm": nn.GroupNorm(count, channels)}
