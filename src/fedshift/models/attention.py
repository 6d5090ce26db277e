"""What transformers share: attention over heads, and residual branches that are dropped."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Self-attention over the tokens [..., T, C], every head looking at its share of the channels.

    Args:
        width: channels.
        heads: which share them equally.
        bias: whether queries, keys and values have one.
        dropout: chance that a weight of the attention is dropped in training.
    """

    def __init__(self, width: int, heads: int, bias: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """The tokens after looking at each other; `add` is added to the scores before softmax."""
        split = self.qkv(x).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).transpose(-2, -3)
        query, key, value = split[0], split[1], split[2]
        # Written out: the fused kernels do not map over clients.
        scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
        weights = self.dropout(torch.softmax(scores if add is None else scores + add, -1))
        out: Tensor = self.proj((weights @ value).transpose(-2, -3).flatten(-2))
        return out


class DropBranch(nn.Module):
    """Stochastic depth: in training, a sample loses the whole branch with a chance.

    What stays is scaled so that the mean stays too.
    """

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.chance = chance

    def forward(self, branch: Tensor) -> Tensor:
        """The branch, of some samples zero."""
        if not self.training or self.chance == 0:
            return branch
        ones = branch.new_ones((len(branch), *[1] * (branch.dim() - 1)))
        return branch * F.dropout(ones, self.chance)


def initialise(module: nn.Module) -> None:
    """Linear layers of a transformer: a normal of spread 0.02, cut at +-2, and no bias."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
