"""How a model is named, built from a key, and built again by another process.

A `ModelSpec` is what a run writes beside its checkpoints. What a user may hand in as a model (a
name, a file, a class, a function, an object) becomes a spec by `ModelSpec.of`.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from fedshift import keys
from fedshift.errors import BadModel
from fedshift.models import contract, initial, registry, source
from fedshift.models.adapter import Adapted, adapt, verify
from fedshift.net import eval_mode


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """Everything it takes to build a model.

    Args:
        name: a network of this package ("lenet"), or where to find a class or function
            ("nets.py:Net", "package.module:Net").
        stages, head: paths of submodules, for a model that does not say so itself.
        kwargs: further arguments for the class, function or network.
        pretrained: a .safetensors file of the weights to begin with ("": they are drawn).
        digest: of that file; one with another is refused ("": any is taken).
        local: an object that lives in this process alone; such a spec cannot be rebuilt elsewhere.

    >>> spec = ModelSpec.of("lenet")
    >>> ModelSpec.from_dict(spec.to_dict()) == spec
    True
    """

    name: str
    stages: tuple[str, ...] = ()
    head: str = ""
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pretrained: str = ""
    digest: str = ""
    local: Any = dataclasses.field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        model: Any,
        stages: tuple[str, ...] = (),
        head: str = "",
        kwargs: Mapping[str, Any] | None = None,
        pretrained: str | os.PathLike[str] = "",
    ) -> ModelSpec:
        """The spec of whatever a user gives as a model.

        >>> ModelSpec.of(nn.Flatten(), head="fc").rebuildable
        False
        """
        given: dict[str, Any] = {
            "stages": tuple(stages),
            "head": head,
            "kwargs": dict(kwargs or {}),
            "pretrained": os.fspath(pretrained),
        }
        if isinstance(model, ModelSpec):
            return dataclasses.replace(model, **{k: v for k, v in given.items() if v})
        if isinstance(model, str):
            return cls(model, **given)
        if isinstance(model, nn.Module):
            return cls(type(model).__name__, local=model, **given)
        if callable(model):
            path = source.importable(model)
            if path:
                return cls(path, **given)
            return cls(source.call_name(model), local=model, **given)
        raise BadModel(
            f"a model cannot be made from {type(model).__name__}: give a network's name, "
            "'nets.py:Net', a module, a class or a function"
        )

    @property
    def rebuildable(self) -> bool:
        """Whether another process can build this model from the dictionary alone."""
        return self.local is None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as TOML or JSON holds them.

        >>> ModelSpec("nets.py:Net", ("conv1",), "fc", {"width": 2}).to_dict()
        {'name': 'nets.py:Net', 'stages': ['conv1'], 'head': 'fc', 'kwargs': {'width': 2}}
        """
        if not self.rebuildable:
            raise BadModel(
                f"model '{self.name}' lives in this process alone, others cannot rebuild it: "
                "put it in a file and give it as 'nets.py:Net', or import it from a module"
            )
        plain: dict[str, Any] = {
            "name": self.name,
            "stages": list(self.stages),
            "head": self.head,
            "kwargs": dict(self.kwargs),
        }
        if self.pretrained:
            plain["pretrained"] = self.pretrained
            plain["digest"] = self.digest or initial.digest(self.pretrained)
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> ModelSpec:
        """The spec that `to_dict` wrote.

        >>> ModelSpec.from_dict({"name": "mlp"})
        ModelSpec(name='mlp', stages=(), head='', kwargs={}, pretrained='', digest='')
        """
        known = ("name", "stages", "head", "kwargs", "pretrained", "digest")
        wrong = set(plain) - set(known)
        if wrong or not isinstance(plain.get("name"), str):
            what = f"unknown entries {', '.join(sorted(wrong))}" if wrong else "no name"
            raise BadModel(f"a model's description has {what}: it holds {', '.join(known)}")
        if plain.get("pretrained") and not plain.get("digest"):
            # Who asks for a file of this machine must know what is in it: a server may ask.
            raise BadModel("a model's description names pretrained weights without their digest")
        return cls(
            plain["name"],
            tuple(plain.get("stages", ())),
            plain.get("head", ""),
            dict(plain.get("kwargs", {})),
            plain.get("pretrained", ""),
            plain.get("digest", ""),
        )

    def build(
        self, shape: tuple[int, ...], classes: int, key: int, task: str = "classification"
    ) -> nn.Module:
        """The model, checked; see `build`."""
        with seeded(keys.fold(key, "model")):
            model = _with_sizes(self._construct(tuple(shape), classes), tuple(shape), self.name)
        if self.head:
            model = adapt(model, self.stages, self.head)
        elif self.stages and self._fits(model):
            vars(model)["stages"] = self.stages  # the model's own head, other places for layers
        elif self.stages:
            raise BadModel(f"model '{self.name}' has stages but no head: name it too (--head fc)")
        if self.pretrained:
            self._fill(model)
        if isinstance(model, Adapted):
            verify(model, shape, classes, self.name, task)
        else:
            contract.check(model, shape, classes, self.name, task)
        return model

    def _fill(self, model: nn.Module) -> None:
        if self.digest and self.digest != initial.digest(self.pretrained):
            raise BadModel(
                f"pretrained weights {self.pretrained} are not those that the run began with: put "
                "the former file back"
            )
        initial.fill(model, self.pretrained)

    def _fits(self, model: nn.Module) -> bool:
        return callable(getattr(model, "features", None)) and hasattr(model, "head")

    def _construct(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if isinstance(self.local, nn.Module):
            return copy.deepcopy(self.local)
        if self.local is None and ":" not in self.name:
            if self.name.endswith(".py"):
                raise BadModel(f"model '{self.name}' names no class: add it ('net.py:Net')")
            return registry.construct(self.name, shape, classes, self.kwargs)
        factory: Callable[..., Any] = self.local or source.load(self.name)
        return source.call(factory, shape, classes, self.kwargs, f"model '{self.name}'")


def build(
    model: Any,
    shape: tuple[int, ...],
    classes: int,
    key: int,
    *,
    stages: tuple[str, ...] = (),
    head: str = "",
    kwargs: Mapping[str, Any] | None = None,
    pretrained: str | os.PathLike[str] = "",
    task: str = "classification",
) -> nn.Module:
    """Build a model and check that it keeps to the contract.

    Args:
        model: a network's name, "nets.py:Net", "package.module:Net", a ModelSpec, a class or a
            function (called with as many of shape and classes as it takes), or a module (copied,
            with the weights it has).
        shape: of one sample, as the model sees it.
        classes: how many there are.
        key: from which the weights are drawn: the same key gives the same weights, whatever else
            the process has drawn, and torch's global generators are left as they were.
        stages, head: paths of submodules, for a model that is not made for this package.
        kwargs: further arguments for a class, a function or a network.
        pretrained: a .safetensors file of the weights to begin with.
        task: "classification" or "segmentation".

    >>> a, b = (build("lenet", (1, 28, 28), 10, key=7) for _ in range(2))
    >>> torch.equal(a.head.weight, b.head.weight)
    True
    """
    spec = ModelSpec.of(model, stages, head, kwargs, pretrained)
    return spec.build(shape, classes, key, task)


def _with_sizes(model: nn.Module, shape: tuple[int, ...], name: str) -> nn.Module:
    """The model, whose lazy layers have seen a sample and so have their weights."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    if any(nn.parameter.is_lazy(t) for t in tensors):
        with torch.no_grad(), eval_mode(model):
            contract.attempt(model, torch.zeros(2, *shape), f"model '{name}': forward(x)")
    return model


@contextlib.contextmanager
def seeded(key: int) -> Iterator[None]:
    """Torch's global generators seeded from a key, and put back afterwards.

    Initialisers, the user's own among them, know no other source of randomness.

    >>> with seeded(3):
    ...     a = torch.rand(2)
    >>> with seeded(3):
    ...     print(torch.equal(a, torch.rand(2)))
    True
    """
    # CUDA's generators only where CUDA is in use: forking them would start it.
    cuda: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = list(range(torch.cuda.device_count())) if cuda else []
    seed = key & ((1 << 63) - 1)
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield
