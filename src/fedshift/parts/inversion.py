"""Latent inversion: vectors that a classifier's head takes for members of given classes.

The heads of all clients and all batches of latents are optimised together: start from noise, and
move the latents (never the head) until they are classified as wished, have the mean and variance
that the head's batch norm has seen, and stay short.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift import keys
from fedshift.optim import Optimizer
from fedshift.parts.fit import Fitted, Loss, fit
from fedshift.tree import Tree, map_tree, pick, under, with_prefix

Head = Callable[[Tree, Tensor], Tensor]
_TINY = 1e-12  # under a root, whose slope at 0 is infinite
_MOMENTUM, _EPS = 0.1, 1e-5  # of the norm in front of the head


def statistics_gap(z: Tensor, mean: Tensor, var: Tensor, squared: bool = True) -> Tensor:
    """How far the mean and (biased) variance of latents [..., B, D] are from given ones [..., D].

    >>> z = torch.tensor([[1.0, 0.0], [3.0, 2.0], [2.0, 4.0]])
    >>> statistics_gap(z, torch.tensor([1.5, 1.0]), torch.tensor([1.0, 4.0]))
    tensor(3.1389)
    """
    apart = (z.mean(dim=-2) - mean, z.var(dim=-2, correction=0) - var)
    squares = [a.square().sum(dim=-1) for a in apart]
    return sum(s if squared else (s + _TINY).sqrt() for s in squares)  # type: ignore[return-value]


def length(z: Tensor, squared: bool = True) -> Tensor:
    """The mean (squared) length of latents [..., B, D].

    >>> length(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor(13.)
    """
    squares = z.square().sum(dim=-1)
    return (squares if squared else (squares + _TINY).sqrt()).mean(dim=-1)


@dataclass(frozen=True)
class Inversion:
    """How many latents there are, and how they are optimised.

    Args:
        batches, batch: batches per client, and latents in each.
        labels: drawn "uniform" over classes, or as often as the "client" has them.
        steps, lr: of Adam, whose betas are 0.5 and 0.9.
        task, statistics, length: weights of the classification, of the distance to the statistics
            of the head's norm, and of the length.
        squared: squared distances and lengths; otherwise their roots.
        frozen: the norm uses the statistics that came with the head. Otherwise it uses those of
            each batch of latents, and the ones to be matched follow them, as in train mode.
        carried: one client after another; a batch starts from the latents and Adam's memory that
            the client before left of it.
        eps: of Adam.
    """

    batches: int = 200
    batch: int = 32
    labels: str = "uniform"
    steps: int = 10_000
    lr: float = 1e-4
    task: float = 1.0
    statistics: float = 1e-3
    length: float = 1e-4
    squared: bool = True
    frozen: bool = True
    carried: bool = False
    eps: float = 1e-8

    def run(
        self,
        head: Head,
        heads: Tree,
        norm: Mapping[str, Tensor],
        width: int,
        histogram: Tensor,
        key: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Latents [K, S, B, D] of K clients, S batches each, and their labels [K, S, B].

        Args:
            head: logits [N, classes] from one head's tensors and latents [N, D], in eval mode.
            heads: the tensors of all heads, [K, ...].
            norm: "mean" and "var" [K, D] of the heads' norms; empty where they have none.
            width: D.
            histogram: how often each client has each class, [K, classes].
            key: one for each client, [K].
        """
        size = (self.batches, self.batch)
        dtype = next(iter(heads.values())).dtype
        y = _classes(keys.fold_in(key, "labels"), histogram, size)
        start = keys.normal(keys.fold_in(key, "latents"), (*size, width), dtype)
        return self.optimise(head, heads, norm, y, start), y

    def optimise(
        self, head: Head, heads: Tree, norm: Mapping[str, Tensor], labels: Tensor, start: Tensor
    ) -> Tensor:
        """The latents [K, S, B, D] that Adam makes of those to start with, see `run`."""
        rest = {**with_prefix("head", heads), **with_prefix("norm", norm), "y": labels}
        # in train mode every batch has running statistics of its own
        each = {n: t[:, None].expand(-1, start.shape[1], -1) for n, t in norm.items()}
        buffers = {} if self.frozen else each
        adam = Optimizer("adam", betas=(0.5, 0.9), eps=self.eps)
        unused = torch.zeros(len(start), dtype=torch.int64, device=start.device)

        def moved(clients: slice, z: Tensor, state: Tree | None = None) -> Fitted:
            moving, beside = (map_tree(lambda t: t[clients], tree) for tree in (buffers, rest))
            return fit(
                self._loss(head),
                {"z": z},
                self.steps,
                adam,
                unused[clients],
                lr=self.lr,
                buffers=moving,
                state=state,
                rest=beside,
            )

        if not self.carried:
            return moved(slice(None), start).params["z"]
        ends = [moved(slice(1), start[:1])]
        for k in range(1, len(start)):
            ends.append(moved(slice(k, k + 1), ends[-1].params["z"], ends[-1].state))
        return torch.cat([end.params["z"] for end in ends])

    def _loss(self, head: Head) -> Loss:
        """The loss of one client's latents [S, B, D], summed over its batches."""

        def loss(tensors: Tree, rest: Tree, key: Tensor, step: Tensor) -> Tensor:
            z = tensors["z"]
            wanted, seen = under("norm", rest), z
            if not self.frozen:
                seen = _as_in_train_mode(z, wanted)
                wanted = _followed(z.detach(), pick(tensors, wanted))
            terms = [self.length * length(z, self.squared)]
            if self.task:
                logits = head(under("head", rest), seen.flatten(0, 1))
                own = F.cross_entropy(logits, rest["y"].flatten(), reduction="none")
                terms.append(self.task * own.reshape(z.shape[:2]).mean(dim=1))
            if self.statistics:
                gap = statistics_gap(z, wanted["mean"], wanted["var"], self.squared)
                terms.append(self.statistics * gap)
            return torch.stack(terms).sum()

        return loss


def _classes(key: Tensor, histogram: Tensor, size: tuple[int, int]) -> Tensor:
    """Labels [K, S, B] drawn from each client's histogram [K, classes]."""
    u = keys.uniform(key, size, torch.float64)
    share = (histogram.double() / histogram.sum(dim=1, keepdim=True)).cumsum(dim=1)
    # the last share may be a little below 1
    return (u[..., None] >= share[:, None, None, :-1]).sum(dim=-1)


def _as_in_train_mode(z: Tensor, norm: Tree) -> Tensor:
    """What a norm with the given statistics must see to give what it gives with a batch's own."""
    own = (z - z.mean(dim=-2, keepdim=True)) / (z.var(-2, correction=0, keepdim=True) + _EPS).sqrt()
    return own * (norm["var"] + _EPS).sqrt() + norm["mean"]


def _followed(z: Tensor, norm: Tree) -> Tree:
    """Running statistics moved in place towards those of a batch, as batch norm does."""
    norm["mean"].mul_(1 - _MOMENTUM).add_(_MOMENTUM * z.mean(dim=-2))
    norm["var"].mul_(1 - _MOMENTUM).add_(_MOMENTUM * z.var(dim=-2))
    return norm
