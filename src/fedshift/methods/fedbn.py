"""# FedBN: batch norm stays at home

Batch norm holds what is particular to a client's inputs, their means and spreads in every channel.
So each client keeps its own, and everything else is averaged. The paper is Li, Jiang, Zhang, Kamp
and Dou, FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021.

## The loss

The task's own. Weight, bias and running statistics of batch norms are not sent; with
`affine=False` the running statistics alone stay (SiloBN, Andreux et al. 2020).

## When to use it

Where sites differ in how inputs look, and each may have a model of its own. A network without batch
norm makes it FedAvg. There is no global model to speak of: scores are of each client's own. A site
that never took part gets the mean of the clients' norm layers, with statistics of its own inputs.

## What crosses the wire

The model without its batch norms: less than FedAvg sends, and no statistics of the inputs.

## Differences from the released code

It finds batch norms by the letters "bn" in a tensor's name; here they are found by their type, also
those of shortcuts that are called otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedshift.hparam import hp
from fedshift.method import Method, Scope


@dataclass(frozen=True)
class FedBN(Method):
    """Local batch norm.

    >>> FedBN().view
    'personal'
    """

    name: ClassVar[str] = "fedbn"
    paper: ClassVar[str] = (
        "Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, "
        "ICLR 2021"
    )
    view: ClassVar[str] = "personal"

    affine: bool = hp(True, "keep weight and bias local too, not the running statistics alone")

    def scope(self, name: str, module: nn.Module) -> Scope:
        """What batch norms own is kept."""
        if not isinstance(module, nn.modules.batchnorm._BatchNorm):
            return Scope()
        learnt = name.rpartition(".")[2] in dict(module.named_parameters(recurse=False))
        return Scope("kept" if self.affine or not learnt else "both")
