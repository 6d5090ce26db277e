"""Importance-weighted aggregation: every scalar parameter is averaged with weights of its own.

## The idea

A client's training data do not touch all of a network alike. A parameter that hardly moves the
output of client A's model, but strongly that of client B, should be taken from B. So each client
measures how much every scalar matters for the output of its trained model, and the server's mean
uses these importances as weights, scalar by scalar. It goes with any method of the client's side:
`importance+fedprox`, `fedbn+importance`.

## The loss

None of its own. After the local steps, with F the logits in eval mode and the samples in batches:

    omega_j = 1/n  sum_batches | d (sum_{x in batch} ||F(x)||^2) / d theta_j |
    theta_j = sum_k (omega_kj / sum_i omega_ij) theta_kj

Where no client's output depends on a parameter (0/0), and for what is not trained (running
statistics), the protocol's weights hold.

## When to use it

Where clients differ in their inputs and the model has capacity to spare. Importances follow the
scale of a client's logits: a client whose model is very sure of itself weighs more everywhere.

## What crosses the wire

Up: the importances, as large as the trained, shared parameters, looked at one by one. Down: nothing
more. The ratio needs two sums over clients only, but the parameters themselves go up too.

## Differences from the released code

The paper divides the mean by the number of clients once more (Eq. 18), which would shrink every
parameter; neither its code nor this method does. The paper judges the encoder by its features, by
the norm and not its square, and takes no absolute value; the code takes the squared norm of the
logits for all parameters and the absolute value of a batch's gradient. Defaults are the code's;
`encoder="features"`, `norm="plain"` and `group=1` are the paper's, with the absolute value without
which weights could be negative. Groups are shuffled in the code, here in the order of the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from fedshift.hparam import hp
from fedshift.method import Ctx, Data, Method, Report, Uploads
from fedshift.parts.importance import importances, shares
from fedshift.tree import with_prefix

if TYPE_CHECKING:
    from fedshift.net import Net


@dataclass(frozen=True)
class Importance(Method):
    """Means weighted by what each scalar parameter does to the output.

    >>> Importance(group=1).norm
    'squared'
    """

    name: ClassVar[str] = "importance"
    paper: ClassVar[str] = (
        "Federated Domain Generalization with Latent Space Inversion, ICDM 2025, its aggregation; "
        "importances as in Aljundi et al., Memory Aware Synapses, ECCV 2018"
    )
    content: ClassVar[dict[str, str]] = {"importance/": "statistics"}

    group: int = hp(32, "samples whose gradients are summed before the absolute value", low=1)
    norm: str = hp("squared", "which norm of the outputs is watched", choices=("squared", "plain"))
    encoder: str = hp(
        "logits", "what parameters before the head are judged by", choices=("logits", "features")
    )

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """The importance of every trained, shared parameter."""
        if ctx.stage != "train":
            return Report()
        found = importances(net, data, ctx.shared, ctx.samples, self.group, self.norm, self.encoder)
        return Report(individual=with_prefix("importance", found))

    def element_weights(self, name: str, uploads: Uploads) -> Tensor | None:
        """Shares in the importance of each scalar."""
        found = uploads.extras.get(f"importance/{name}")
        return None if found is None else shares(found, uploads.weights)
