"""# FedFA+: augmentation and alignment of features together

FedFA moves the style of features at random, as far as clients differ; FedFA-h draws histograms of
the last stage towards their mean over clients. FedFA+ does both at once: it is the composition
`fedfa+fedfa-h` under the paper's name, with the hyperparameters of both, and computes the
same. The paper is Zhou, Yuan, Wang and Konukoglu, Federated Feature Augmentation and Alignment,
IEEE TPAMI 2024.

## The loss

    task + lambda * mean over channels of 1/2 (KL(pi_b, pi) + KL(pi, pi_b))

on features that FedFA's layers have moved, the last stage's included: the histogram pi_b of a batch
is taken behind the layer.

## When to use it

As FedFA, where one global model has to serve sites of different style; the alignment costs another
pass over the data each round, two on large sites. With local batch norm it is `fedfa-plus+fedbn`.

## What crosses the wire

What FedFA and FedFA-h send: for AlexNet (1152 channels in its stages, 256 in the last, 8 bins)
18 KiB of statistics and 16 KiB of histograms a round, both ways together, beside 49.5 MiB of model
each way.

## Differences from the released code

The released code holds FedFA alone; what FedFA's and FedFA-h's pages say of it holds here. `p=0`
leaves FedFA-h, `align=0` leaves FedFA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedshift.federation import Facts
from fedshift.method import Ctx, Data, Report, State, Uploads
from fedshift.methods.fedfa import FedFA
from fedshift.methods.fedfa_h import FedFAH
from fedshift.tree import Tree

if TYPE_CHECKING:
    from fedshift.net import Net


# Two parents and not a composition, so that the hyperparameters of both are declared once and the
# paper's method has a name; where both have a hook, both are called.
@dataclass(frozen=True)
class FedFAPlus(FedFAH, FedFA):
    """FedFA and FedFA-h at once.

    >>> FedFAPlus(p=0.3, align=0.5).bins
    8
    """

    name: ClassVar[str] = "fedfa-plus"
    paper: ClassVar[str] = "Zhou et al., Federated Feature Augmentation and Alignment, TPAMI 2024"
    content: ClassVar[dict[str, str]] = {**FedFA.content, **FedFAH.content}

    def init_client(self, params: Tree, facts: Facts) -> State:
        """Moving averages and limits of channels."""
        one, other = FedFA.init_client(self, params, facts), FedFAH.init_client(self, params, facts)
        return State({**one.tensors, **other.tensors})

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """Statistics and histograms."""
        one, other = FedFA.report(self, ctx, net, data), FedFAH.report(self, ctx, net, data)
        return Report(
            mean=other.mean,
            sum=one.sum,
            individual=one.individual,
            keep={**one.keep, **other.keep},
        )

    def after(
        self, new: Tree, uploads: Uploads, server: State, net: Net, key: int
    ) -> tuple[Tree, State]:
        """Variances, then the mean histogram."""
        new, server = FedFA.after(self, new, uploads, server, net, key)
        return FedFAH.after(self, new, uploads, server, net, key)
