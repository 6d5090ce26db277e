"""FedBN (Li et al., ICLR 2021): every batch norm stays on its client, the rest is averaged.

Layers are found by their type. `affine=False` keeps the running statistics local alone and shares
weight and bias (SiloBN, Andreux et al. 2020). There is no global model to speak of: scores are of
each client's own. A site that never took part gets the mean of the clients' norm layers with
statistics of its own inputs.
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
