"""Which uploads are summed, in which order, by which weights: the same at the server and at sites.

Tensors of the model go as their distance from what the server sent, which is small; everything else
goes as it is. Counters of the model (BatchNorm's number of batches), of which the server takes the
largest, go in clear: they follow from numbers of samples and rounds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedshift.engines.flower.codec import Like, Rejected
from fedshift.engines.flower.secagg.ring import Numbers
from fedshift.engines.flower.secagg.summed import Hidden, Summed, summed
from fedshift.engines.flower.secagg.terms import Secure
from fedshift.errors import CannotCombine
from fedshift.plan import Plan
from fedshift.tree import Tree


@dataclasses.dataclass(frozen=True)
class Entry:
    """A tensor that is summed.

    Args:
        name: "model/…" or "extra/METHOD/…".
        like: its type and shape.
        weighed: by the sites' weights, or alike.
        moved: it goes as its distance from what the server sent.
    """

    name: str
    like: Like
    weighed: bool
    moved: bool

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.like.shape)


@dataclasses.dataclass(frozen=True)
class Layout:
    """What is summed, in order, and what goes beside it in clear."""

    entries: tuple[Entry, ...]
    clear: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many numbers are summed."""
        return sum(e.size for e in self.entries)

    def __contains__(self, name: str) -> bool:
        return any(e.name == name for e in self.entries)

    @property
    def digest(self) -> str:
        """What the server and a site compare."""
        rows = [[e.name, str(e.like.dtype), e.like.shape, e.weighed, e.moved] for e in self.entries]
        return hashlib.sha256(json.dumps([rows, self.clear]).encode()).hexdigest()

    # -- a site's half -------------------------------------------------------------------------

    def numbers(self, up: Tree, received: Tree, secure: Secure, weight: int) -> Numbers:
        """A site's upload as whole numbers times its weight; what is out of range is refused."""
        if weight * secure.largest >= 1 << 62:
            raise Rejected(f"a weight of {weight} leaves no room for {secure.bits} bits")
        whole = np.empty(self.size, np.int64)
        at = 0
        for entry in self.entries:
            here = whole[at : at + entry.size]
            at += entry.size
            here[:] = _whole(entry, up[entry.name], received, secure)
            if entry.weighed:
                here *= weight
        return whole

    # -- the server's half ---------------------------------------------------------------------

    def rows(
        self,
        sums: Numbers,
        sent: Tree,
        secure: Secure,
        weights: Sequence[int],
        device: torch.device,
    ) -> dict[str, Summed]:
        """What stands for all sites' uploads, from the sums of their numbers."""
        found: dict[str, Summed] = {}
        at = 0
        for entry in self.entries:
            part = torch.from_numpy(sums[at : at + entry.size].copy()).reshape(entry.like.shape)
            at += entry.size
            each = list(weights) if entry.weighed else [1] * len(weights)
            if entry.like.dtype.is_floating_point:
                part = part.double() * secure.step
            if entry.moved:
                origin = sent[entry.name.removeprefix("model/")]
                part = part + sum(each) * origin.detach().cpu().double()
            found[entry.name] = summed(part.to(device), each, entry.like.dtype)
        return found


def layout(plan: Plan, likes: Mapping[str, Like], kinds: Mapping[str, str]) -> Layout:
    """How uploads of a round are summed; what cannot be is refused, naming the method.

    Args:
        plan: of the run.
        likes: the uploads, "model/…" and "extra/METHOD/…".
        kinds: how the server may use the latter, by "METHOD/…".
    """
    entries, clear = [], []
    for name in sorted(likes):
        like, rest = likes[name], name.partition("/")[2]
        if name.startswith("extra/"):
            entries.append(Entry(name, like, _weighed(plan, rest, kinds[rest], like), False))
        elif like.dtype.is_floating_point:
            entries.append(Entry(name, like, True, rest in plan.down))
        elif math.prod(like.shape) == 1:
            clear.append(name)
        else:
            raise CannotCombine(
                f"'{rest}' of the model holds whole numbers, of which the server takes the "
                f"largest; {SUMS}"
            )
    return Layout(tuple(entries), tuple(clear))


SUMS = (
    "secure aggregation gives sums alone: take another method, or a setting of it that needs no "
    "more, or leave it off"
)


def _weighed(plan: Plan, name: str, kind: str, like: Like) -> bool:
    """Whether an upload of a method is summed by the sites' weights; found by trying its rule."""
    owner = name.partition("/")[0]
    if kind == "individual":
        raise CannotCombine(
            f"'{owner}' uploads '{name}' for the server to look at one by one, and {SUMS}"
        )
    if like.dtype == torch.bool or (kind == "mean" and not like.dtype.is_floating_point):
        raise CannotCombine(
            f"'{owner}' uploads '{name}', which are no numbers to be averaged, and {SUMS}"
        )
    for weights in ([1, 2], [1, 1]):
        rows = summed(torch.zeros(()).expand(like.shape), weights, like.dtype)
        shares = torch.tensor(weights, dtype=torch.float64) / sum(weights)
        try:
            own = plan.method.combine_extra(name, rows, shares.to(plan.dtype))
        except Hidden:
            continue
        return kind == "mean" if own is None else weights == [1, 2]
    raise CannotCombine(f"'{owner}' combines '{name}' by a rule of its own, and {SUMS}")


def _whole(entry: Entry, tensor: Tensor, received: Tree, secure: Secure) -> Numbers:
    """A tensor as whole numbers."""
    shown = entry.name.partition("/")[2]
    if not entry.like.dtype.is_floating_point:
        whole = tensor.detach().cpu().to(torch.int64).reshape(-1)
        if whole.numel() and int(whole.abs().max()) > secure.largest:
            raise Rejected(f"'{shown}' holds whole numbers of more than {secure.bits} bits")
        return whole.numpy()
    value = tensor.detach().cpu().double()
    if entry.moved:
        value = value - received[shown].detach().cpu().double()
    if not bool(torch.isfinite(value).all()):
        raise Rejected(f"'{shown}' has NaN or infinite values: lower the learning rate, or clip")
    if value.numel() and float(value.abs().max()) > secure.clip:
        what = "moves by more" if entry.moved else "holds more"
        raise Rejected(f"'{shown}' {what} than {secure.clip:g}: raise clip in [secure]")
    return (value / secure.step).round().to(torch.int64).reshape(-1).numpy()
