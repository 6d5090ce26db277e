"""The loss of a model over all of a client's data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from torch.func import vmap

from fedshift import task
from fedshift.method import Data
from fedshift.tree import Tree

if TYPE_CHECKING:
    from fedshift.net import Net


def data_loss(net: Net, data: Data, kind: str, samples: Tensor, like: Tensor) -> Tensor:
    """The mean loss per sample, a scalar of the type of `like`.

    Args:
        net: the model, in eval mode (`net.at`), so that samples do not mix.
        data: passed over once.
        kind: the task.
        samples: how many there are.
        like: says the type and place of the result.
    """

    def add(acc: Tree, x: Tensor, y: Tensor, mask: Tensor) -> Tree:
        each = vmap(lambda o, t: task.loss(kind, o[None], t[None]))(net(x), y)
        return {"sum": acc["sum"] + (each * mask).sum()}

    return data.fold(add, {"sum": like.new_zeros(())})["sum"] / samples
