"""# Importance: every scalar parameter is averaged with weights of its own

A client's training data do not touch all of a network alike. A scalar that hardly moves the output
of client A's model, but strongly that of client B's, should be taken from B. So each client
measures how much every scalar matters for the output of its trained model, and the server weights
each scalar's mean by that. It goes with any method of the client's side: `importance+fedprox`,
`fedbn+importance`. The papers are Federated Domain Generalization with Latent Space Inversion,
ICDM 2025, whose aggregation this is, and Aljundi et al., Memory Aware Synapses, ECCV 2018.

## The loss

None of its own. After the local steps one pass over the data, with F the logits in eval mode and
the samples in groups of 32, gives

    omega_j = 1/n  sum_groups | d (sum_{x in group} |F(x)|^2) / d theta_j |

and the server, over clients k,

    theta_j = sum_k (omega_kj / sum_i omega_ij) theta_kj

Where all omega_kj are 0, and for what is not trained (running statistics), the protocol's weights
hold.

## When to use it

Where clients differ in their inputs and the model has capacity to spare. Importances follow the
scale of a client's logits: a client whose model is very sure of itself weighs more everywhere. The
pass costs about one local epoch; with `group=1`, a gradient for every sample, several.

## What crosses the wire

Up: the importances, as large as the trained, shared parameters, looked at one by one. Down: nothing
more. The ratio needs two sums over clients only, but here parameters and importances both go up.

## Differences from the released code

- The defaults are the code's. It shuffles the groups; here they are in the order of the data.
- Its function that normalises importances was not released; the formula above is the paper's.
- The paper divides the mean by the number of clients once more (Eq. 18), which would shrink every
  parameter. Neither its code nor this method does.
- The paper judges the encoder by its features, by the norm and not its square, sample by sample,
  and takes no absolute value: `encoder="features"`, `norm="plain"`, `group=1`. The absolute value
  stays, as weights could be negative without it.
- Buffers and scalars that are important to nobody are weighted by numbers of samples in the code:
  `weights="samples"` of the protocol.
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
