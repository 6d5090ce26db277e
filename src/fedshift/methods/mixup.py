"""# Mixup: mixed samples with mixed labels

Each client trains on convex mixtures of its own samples and of their labels, which makes a network
less sure between classes. The paper is Zhang, Cisse, Dauphin and Lopez-Paz, mixup: Beyond Empirical
Risk Minimization, ICLR 2018.

## The loss

With one lam ~ Beta(alpha, alpha) and one permutation of the batch in each step,

    x' = lam x + (1 - lam) x[perm],   y' = lam y + (1 - lam) y[perm]

and the task's loss on (x', y'). Cross-entropy is linear in the labels, so that is
lam CE(y) + (1 - lam) CE(y[perm]).

## When to use it

With any method, for classification and segmentation (masks are mixed too). Methods that look at
labels get soft ones. It costs nothing to speak of. `alpha=0` is off.

## What crosses the wire

Nothing beside the model.

## Differences from the released code

None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedshift import keys
from fedshift.hparam import hp
from fedshift.method import Ctx, Method
from fedshift.parts.labels import one_hot


@dataclass(frozen=True)
class Mixup(Method):
    """Mixed batches with soft labels.

    >>> Mixup(alpha=0.4).alpha
    0.4
    """

    name: ClassVar[str] = "mixup"
    paper: ClassVar[str] = "Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018"

    alpha: float = hp(
        0.2, "both parameters of the Beta distribution (0: no mixing)", low=0, off=0.0
    )

    def batch(self, x: Tensor, y: Tensor, ctx: Ctx) -> tuple[Tensor, Tensor]:
        """Mix the batch with a permutation of itself."""
        if self.alpha == 0:
            return x, y
        lam = keys.beta(keys.fold_in(ctx.key, "lambda"), self.alpha, self.alpha).to(x.dtype)
        partner = keys.permutation(keys.fold_in(ctx.key, "partner"), x.shape[0])
        return mix(x, soft(y, ctx.facts.classes, x), lam, partner)


def soft(y: Tensor, classes: int, like: Tensor) -> Tensor:
    """Labels as probabilities over classes, classes on the second axis."""
    return y if y.is_floating_point() else one_hot(y, classes, like).movedim(-1, 1)


def mix(x: Tensor, y: Tensor, lam: Tensor, partner: Tensor) -> tuple[Tensor, Tensor]:
    """lam of each sample and 1 - lam of its partner."""
    mixed_x = lam * x + (1.0 - lam) * x.index_select(0, partner)
    mixed_y = lam * y + (1.0 - lam) * y.index_select(0, partner)
    return mixed_x, mixed_y
