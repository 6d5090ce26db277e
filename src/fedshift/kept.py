"""What clients keep between rounds: tensors of those that took part, one beginning for all others.

A federation may have many more clients than ever take part in a round; memory and checkpoints grow
with those that did.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fedshift.tree import Tree


class Kept(Mapping[str, Tree]):
    """What each client keeps, by its name, in the federation's order; nothing changes in place.

    Args:
        names: all clients.
        initial: what a client keeps before it took part, held once for all of them.

    >>> import torch
    >>> before = Kept(["a", "b"], {"w": torch.zeros(1)})
    >>> after = before.updated({"b": {"w": torch.ones(1)}})
    >>> after["a"], after["b"], list(after.touched), list(before.touched)
    ({'w': tensor([0.])}, {'w': tensor([1.])}, ['b'], [])
    """

    def __init__(self, names: Iterable[str], initial: Tree) -> None:
        self._names = dict.fromkeys(names)
        self.initial = _sorted(initial)
        self.touched: Mapping[str, Tree] = {}

    def updated(self, new: Mapping[str, Tree]) -> Kept:
        """The same with other trees for some clients.

        Their tensors are put in order of names, as they are read back from a checkpoint: sums over
        them round alike then.
        """
        after = Kept((), self.initial)
        after._names = self._names
        after.touched = {**self.touched, **{c: _sorted(tree) for c, tree in new.items()}}
        return after

    def own(self, name: str) -> Tree:
        """A client's tree for a trip, no tensor of which is another client's too.

        Engines treat what is the same object for all clients in another way.
        """
        if name in self.touched:
            return dict(self.touched[name])
        return {n: t.clone() for n, t in self[name].items()}

    def __getitem__(self, name: str) -> Tree:
        if name in self.touched:
            return self.touched[name]
        if name not in self._names:
            raise KeyError(name)
        return self.initial

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _sorted(tree: Mapping[str, object]) -> Tree:
    return dict(sorted(tree.items()))  # type: ignore[arg-type]
