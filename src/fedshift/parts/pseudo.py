"""Pseudo-data: means of several samples, which stand for data that must not be shown.

A client makes means of its own samples (`means_of`, `labelled_means_of`), the server draws from
what came (`collected`, `pooled`), or makes means of public data (`means_at`); `blended` mixes them
with a client's batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedshift import keys
from fedshift.data.in_memory import inputs
from fedshift.errors import BadData, BadModel
from fedshift.method import Data, Uploads
from fedshift.parts.labels import one_hot
from fedshift.tree import Tree

# whose data the means are of: of everybody's alike, or of clients drawn, alike or by their samples
DONORS = ("even", "uniform", "samples")


def check_public(path: str, shape: tuple[int, ...]) -> None:
    """Refuse an .npz file whose inputs do not have the shape of the clients' samples."""
    found = tuple(inputs(path).shape[1:])
    if found != shape:
        raise BadData(
            f"{path} holds samples of shape {found}, and the clients' have {shape}: resize them to "
            "one shape"
        )


def check_size(size: int, model: nn.Module, where: str) -> None:
    """Refuse one pseudo-datum alone where a batch norm would have to normalise it."""
    norms = (nn.modules.batchnorm._BatchNorm,)
    if size == 1 and any(isinstance(m, norms) for m in model.modules()):
        raise BadModel(f"{where} is 1, which a batch norm cannot normalise: set it to 2 or more")


def quota(count: int, givers: int, donors: str) -> int:
    """How many means each of so many clients sends, where `count` are to be drawn from them.

    >>> quota(32, 10, "even"), quota(32, 10, "uniform")  # one client might be drawn every time
    (4, 32)
    """
    return -(-count // givers) if donors == "even" else count


def collected(uploads: Uploads, name: str, key: Tensor, count: int, donors: str) -> Tensor:
    """Draw some of the means that clients sent under a name; their order does not matter."""
    order = sorted(range(len(uploads.clients)), key=uploads.clients.__getitem__)
    means, samples = uploads.extras[name][order], uploads.samples[order]
    weights = {"even": None, "uniform": torch.ones_like(samples), "samples": samples}
    return pooled(means, key, count, weights[donors])


def means_of(
    data: Data,
    samples: Tensor,
    shape: tuple[int, ...],
    key: Tensor,
    count: int,
    each: int,
    dtype: torch.dtype,
) -> Tensor:
    """Means of a client's samples, each of some that are drawn with replacement.

    Args:
        data: the client's data, passed over once.
        samples: how many there are, a 0-d tensor.
        shape: of one sample.
        key: what the draws follow from.
        count: how many means.
        each: samples in a mean.
        dtype: of the result.
    """
    flat = math.prod(shape)
    total = _summed(data, samples, key, count, each, flat, dtype, lambda x, y: x.flatten(1))
    return total.reshape(count, *shape) / each


def labelled_means_of(
    data: Data,
    samples: Tensor,
    shape: tuple[int, ...],
    classes: int,
    key: Tensor,
    count: int,
    each: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The same, and the means of those samples' labels [count, classes]."""
    flat = math.prod(shape)

    def both(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x.flatten(1), one_hot(y, classes, x)], dim=1)

    total = _summed(data, samples, key, count, each, flat + classes, dtype, both) / each
    return total[:, :flat].reshape(count, *shape), total[:, flat:]


def _summed(
    data: Data,
    samples: Tensor,
    key: Tensor,
    count: int,
    each: int,
    width: int,
    dtype: torch.dtype,
    rows: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Sums [count, width] of what `rows` makes of the samples that are drawn."""
    draws = _draw(key, samples, count, each)

    def add(acc: Tree, x: Tensor, y: Tensor, mask: Tensor) -> Tree:
        here = acc["at"] + torch.arange(len(x), device=x.device)
        times = (draws[..., None] == here).sum(dim=1).to(x.dtype)  # [count, B]
        with torch.autocast(x.device.type, enabled=False):  # a sum, not a layer of a network
            total = times @ rows(x, y)
        return {"sum": acc["sum"] + total, "at": acc["at"] + len(x)}

    start = {
        "sum": torch.zeros((count, width), dtype=dtype, device=key.device),
        "at": torch.zeros((), dtype=torch.int64, device=key.device),
    }
    return data.fold(add, start)["sum"]


def means_at(x: Tensor, key: Tensor, count: int, each: int, dtype: torch.dtype) -> Tensor:
    """Means of samples x [N, ...] at hand, each of some that are drawn with replacement.

    uint8 becomes 0 to 1; nothing else is changed.
    """
    size = torch.full((), len(x), device=key.device)
    chosen = x[_draw(key, size, count, each).flatten().cpu()].to(key.device)
    values = chosen.to(dtype) / 255.0 if chosen.dtype == torch.uint8 else chosen.to(dtype)
    return values.reshape(count, each, *x.shape[1:]).mean(dim=1)


def _draw(key: Tensor, below: Tensor, count: int, each: int) -> Tensor:
    """Numbers uniform on 0 … below-1 [count, each]."""
    return (keys.uniform(key, (count, each), torch.float64) * below).to(torch.int64)


def pooled(means: Tensor, key: Tensor, count: int, weights: Tensor | None = None) -> Tensor:
    """Draw some of the means [K, M, ...] that K clients sent.

    Without weights every client gives as many as any other, give or take one (means that came are
    used again where too few did). With weights [K], a client is drawn for each by its weight.

    >>> means = torch.arange(6.0).reshape(3, 2)
    >>> sorted(pooled(means, torch.tensor(0), 6).tolist())
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    >>> pooled(means, torch.tensor(0), 2, torch.tensor([0.0, 1.0, 0.0])).tolist()
    [2.0, 3.0]
    """
    clients, own = means.shape[:2]
    rank = torch.arange(count, device=means.device)
    if weights is None:
        turn = keys.permutation(key, clients)  # who gives first: nobody is favoured
        return means[turn[rank % clients], (rank // clients) % own]
    share = (weights.to(torch.float64) / weights.sum()).cumsum(0)
    u = keys.uniform(key, (count,), torch.float64)
    client = torch.searchsorted(share, u, right=True).clamp_max(clients - 1)
    return means[client, rank % own]


def blended(
    x_p: Tensor, q: Tensor, x: Tensor, y: Tensor, key: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Pseudo-data x_p with labels q, each mixed with so many random samples of a batch (x, y)."""
    partners = keys.integers(key, len(x), (len(x_p), count))
    return mixed(x_p, x[partners]), mixed(q, y[partners])


def mixed(pseudo: Tensor, others: Tensor) -> Tensor:
    """(pseudo + sum of its partners) / (their number + 1): pseudo [P, ...], others [P, K, ...].

    >>> label = torch.full((1, 4), 0.25)
    >>> partner = torch.tensor([[[0.0, 0.0, 1.0, 0.0]]])
    >>> mixed(label, partner)
    tensor([[0.1250, 0.1250, 0.6250, 0.1250]])
    """
    return (pseudo + others.sum(dim=1)) / (others.shape[1] + 1)
