"""What a server holds for each client: rows of stacked tensors, told by the clients' names.

The numbers of a server's state say whose a row is ("row/NAME"), in the order of names: so a row
depends neither on who takes part in a round nor on the order of the federation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedshift import keys
from fedshift.method import Number
from fedshift.tree import Tree

_PREFIX = "row/"


def assign(clients: Iterable[str]) -> dict[str, Number]:
    """A row for each client, as numbers of a state.

    >>> assign(["b", "a"])
    {'row/a': 0, 'row/b': 1}
    """
    return {f"{_PREFIX}{name}": k for k, name in enumerate(sorted(clients))}


def rows_of(numbers: Mapping[str, Number]) -> dict[str, int]:
    """Each client's row, from the numbers of a state, in the order of rows.

    >>> rows_of({"rounds": 3, **assign(["b", "a"])})
    {'a': 0, 'b': 1}
    """
    found = {n[len(_PREFIX) :]: int(k) for n, k in numbers.items() if n.startswith(_PREFIX)}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def keys_of(key: int, purpose: str, clients: Iterable[str]) -> Tensor:
    """A key for each client [K], which depends on nothing but its name.

    >>> bool((keys_of(7, "train", "ab") == keys_of(7, "train", "cba")[[2, 1]]).all())
    True
    """
    return torch.stack([keys.as_tensor(keys.fold(key, purpose, name)) for name in clients])


def take(stacked: Mapping[str, Tensor], at: Sequence[int]) -> Tree:
    """Some rows of stacked tensors, in the order asked for."""
    index = _index(stacked, at)
    return {name: t.index_select(0, index) for name, t in stacked.items()}


def put(stacked: Mapping[str, Tensor], at: Sequence[int], new: Mapping[str, Tensor]) -> Tree:
    """Stacked tensors with some rows replaced; what was given stays as it is.

    >>> put({"w": torch.zeros(3, 1)}, [2, 0], {"w": torch.tensor([[5.0], [7.0]])})
    {'w': tensor([[7.],
            [0.],
            [5.]])}
    """
    index = _index(stacked, at)
    return {name: t.index_copy(0, index, new[name]) for name, t in stacked.items()}


def _index(stacked: Mapping[str, Tensor], at: Sequence[int]) -> Tensor:
    """Places as one tensor, which goes to the device once for all names."""
    device = next((t.device for t in stacked.values()), None)
    return torch.tensor(list(at), dtype=torch.int64, device=device)
