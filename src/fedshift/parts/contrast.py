"""Cosine contrast: pull representations towards some, push them off others.

`two_way` has one positive and one negative for each row (FedBR, MOON); `infonce` any number of
both, some of which may be missing (FPL's prototypes). Both take similarities that are scaled
already, and `scaled` says how papers and codes scale them. `supervised` takes features and labels
of a batch, whose rows are positives of those of their own label (VHL). `projector` is the small
network through which representations are often compared.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift.errors import BadValue

MODES = ("multiply", "divide")


def projector(width: int, hidden: int, out: int) -> nn.Sequential:
    """A projection head: three layers with ReLU between.

    >>> sum(p.numel() for p in projector(512, hidden=256, out=128).parameters())
    230016
    """
    return nn.Sequential(
        nn.Linear(width, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, out),
    )


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosines of the rows of a and b [..., D], in float32 at least.

    A row of zeros is orthogonal to everything.

    >>> cosine(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[2.0, 1.0], [1.0, 1.0]]))
    tensor([0.8000, 0.0000])
    """
    wide = torch.promote_types(a.dtype, torch.float32)
    return F.cosine_similarity(a.to(wide), b.to(wide), dim=-1, eps=1e-8)


def check_temperature(tau: float, mode: str, where: str) -> None:
    """Refuse a temperature of 0 to divide by; multiplied by 0, a similarity just drops out."""
    if mode == "divide" and tau == 0:
        raise BadValue(f"{where} is 0, which nothing is divided by: give more, or multiply by it")


def scaled(similarity: Tensor, tau: float, mode: str) -> Tensor:
    """A similarity times the temperature ("multiply") or over it ("divide").

    >>> scaled(torch.tensor(0.5), 2.0, "multiply"), scaled(torch.tensor(0.5), 2.0, "divide")
    (tensor(1.), tensor(0.2500))
    """
    return similarity * tau if mode == "multiply" else similarity / tau


def two_way(towards: Tensor, away: Tensor) -> Tensor:
    """-log(e^towards / (e^towards + e^away)) for each row, which is softplus(away - towards).

    >>> two_way(torch.tensor([0.3]), torch.tensor([0.3]))
    tensor([0.6931])
    """
    return F.softplus(away - towards)


def infonce(scores: Tensor, positive: Tensor, present: Tensor | None = None) -> Tensor:
    """-log of the share that positives have in sum_j e^score, for each row.

    A row without a positive counts 0.

    Args:
        scores: scaled similarities [B, M].
        positive: which of them are positives, booleans [B, M].
        present: which of them exist at all, booleans that broadcast to [B, M] (None: all).

    >>> scores = torch.tensor([[2.0, 2.0, 9.0]])
    >>> infonce(scores, torch.tensor([[True, False, False]]), torch.tensor([True, True, False]))
    tensor([0.6931])
    """
    if present is not None:
        positive = positive & present
    all_scores = scores if present is None else scores.masked_fill(~present, _NEVER)
    ours = torch.logsumexp(scores.masked_fill(~positive, _NEVER), dim=-1)
    loss = torch.logsumexp(all_scores, dim=-1) - ours
    # where, not a product: 0 times what such a row gives could be NaN
    return torch.where(positive.any(dim=-1), loss, torch.zeros_like(loss))


def supervised(z: Tensor, y: Tensor, temperature: float) -> Tensor:
    """Supervised contrast of rows z [N, D] with labels y [N]: Khosla et al., NeurIPS 2020.

    With s_ij = cos(z_i, z_j) / temperature, each row loses the mean over the others p of its label
    of -log(e^s_ip / sum over j != i of e^s_ij). A mean over the rows whose label another one has; 0
    where there are none.

    >>> supervised(torch.ones(3, 2), torch.tensor([0, 0, 1]), 0.07)
    tensor(0.6931)
    """
    z = F.normalize(z.to(torch.promote_types(z.dtype, torch.float32)), dim=1)
    with torch.autocast(z.device.type, enabled=False):  # similarities, not a layer of a network
        s = z @ z.T / temperature
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    share = s - torch.logsumexp(s.masked_fill(itself, _NEVER), dim=1, keepdim=True)
    positive = ((y[:, None] == y) & ~itself).to(s.dtype)
    count = positive.sum(dim=1)
    each = -(positive * share).sum(dim=1) / count.clamp_min(1.0)
    return each.sum() / (count > 0).sum().clamp_min(1)


# e to it is 0, and unlike infinity it leaves no NaN in gradients
_NEVER = -1e30
