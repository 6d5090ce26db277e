"""A model as its methods see it: forwards with the tensors of the trip, or with any others.

The contract (see `fedshift.models`): `stages`, `features(x)`, `head(z)`. `Net` calls the module
either directly, with the tensors that it holds (the loop engine trains them in place), or through
`torch.func.functional_call` with tensors passed in (stacked engine, teachers, inner steps).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedshift.errors import BadModel, UnknownName
from fedshift.tree import Tree

Change = Callable[[Tensor], Tensor]

# layers that have running statistics
_NORMS = (nn.modules.batchnorm._NormBase,)


class _Dispatch(nn.Module):
    """Lets `functional_call` reach any method of a model, not its `forward` alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, call: Callable[..., Any], *args: Any) -> Any:
        return call(self.model, *args)


class Net:
    """The model with a set of tensors.

    Args:
        model: a module that fits the contract.
        tensors: parameters and buffers by name (None: those that the module holds).
        grad: whether gradients flow; teachers do not need any.
    """

    def __init__(self, model: nn.Module, tensors: Tree | None = None, grad: bool = True) -> None:
        self._model = model
        self._given = tensors
        self._grad = grad

    @functools.cached_property
    def tensors(self) -> Tree:
        """Parameters and buffers by name."""
        return tensors_of(self._model) if self._given is None else self._given

    def _run(self, call: Callable[..., Any], *args: Any) -> Any:
        if self._given is None:
            return call(self._model, *args)
        tensors = {f"model.{name}": t for name, t in self._given.items()}
        with torch.set_grad_enabled(self._grad and torch.is_grad_enabled()):
            return torch.func.functional_call(_Dispatch(self._model), tensors, (call, *args))

    def __call__(self, x: Tensor) -> Tensor:
        """Logits of a batch."""
        out: Tensor = self._run(_forward, x)
        return out

    def features(self, x: Tensor, changes: Mapping[str, Change] | None = None) -> Tensor:
        """What the head sees, [B, D]; in this pass, `changes` replace the outputs of stages."""
        out: Tensor = self._run(_features_changed, x, changes or {})
        return out

    def head(self, z: Tensor) -> Tensor:
        """Logits of features."""
        out: Tensor = self._run(lambda m, z: m.head(z), z)
        return out

    def call(self, module: str, *args: Any) -> Any:
        """Run a submodule by its path: an attached generator, a projection head."""
        return self._run(lambda m, *a: m.get_submodule(module)(*a), *args)

    def output(self, x: Tensor, taps: tuple[str, ...] = ()) -> Output:
        """A forward pass that runs as far as it is asked for."""
        return Output(self, x, taps)

    @functools.cached_property
    def buffers(self) -> frozenset[str]:
        """Names of the tensors that move without gradients: running statistics and their kin."""
        return frozenset(name for name, _ in self._model.named_buffers())

    def at(
        self, tensors: Mapping[str, Tensor], grad: bool = False, by_batch: bool = False
    ) -> Frozen:
        """The same model with other tensors, in eval mode and without gradients unless asked.

        `by_batch` lets norm layers take their statistics from the batch, as in training.
        """
        whole = {**self.tensors, **tensors}
        # A backward pass needs the running statistics as they were, whatever moves them later.
        whole = self._copied(whole) if grad or by_batch else whole
        return Frozen(self._model, whole, grad, by_batch)

    def aside(self, tensors: Mapping[str, Tensor] | None = None, grad: bool = True) -> Net:
        """The model in the mode it is in, but with copies of its buffers: a pass without traces."""
        return Net(self._model, self._copied({**self.tensors, **(tensors or {})}), grad)

    def _copied(self, tensors: Tree) -> Tree:
        return {n: t.clone() if n in self.buffers else t for n, t in tensors.items()}


class Frozen(Net):
    """A net in eval mode: no buffer moves, dropout is off. Teachers and former models."""

    def __init__(self, model: nn.Module, tensors: Tree, grad: bool, by_batch: bool = False) -> None:
        super().__init__(model, tensors, grad)
        self._awake = _NORMS if by_batch else ()

    def _run(self, call: Callable[..., Any], *args: Any) -> Any:
        with eval_mode(self._model, self._awake):
            return super()._run(call, *args)


class Output:
    """A forward pass: features, logits and tapped stages, each computed when first asked for."""

    def __init__(self, net: Net, x: Tensor, taps: tuple[str, ...] = ()) -> None:
        self.x = x
        self._net = net
        self._taps = taps
        self._seen: dict[str, Tensor] = {}

    @functools.cached_property
    def z(self) -> Tensor:
        """The features, [B, D]."""
        z: Tensor = self._net._run(_features_tapped, self.x, self._taps, self._seen)
        return z

    @functools.cached_property
    def logits(self) -> Tensor:
        """The head's outputs, [B, classes]."""
        return self._net.head(self.z)

    def stage(self, name: str) -> Tensor:
        """The output of a stage that the method declared in `taps`."""
        self.z  # noqa: B018  (the pass that fills what was tapped)
        if name not in self._seen:
            raise UnknownName("tapped stage", name, self._seen)
        return self._seen[name]


def _forward(model: nn.Module, x: Tensor) -> Tensor:
    logits: Tensor = model.head(model.features(x))  # type: ignore[operator]
    return logits


def _features_changed(model: nn.Module, x: Tensor, changes: Mapping[str, Change]) -> Tensor:
    with changed(model, changes):
        z: Tensor = model.features(x)  # type: ignore[operator]
    return z


def _features_tapped(
    model: nn.Module, x: Tensor, taps: tuple[str, ...], seen: dict[str, Tensor]
) -> Tensor:
    with tapped(model, taps, seen):
        z: Tensor = model.features(x)  # type: ignore[operator]
    return z


@contextmanager
def tapped(model: nn.Module, stages: tuple[str, ...], into: dict[str, Tensor]) -> Iterator[None]:
    """Record the outputs of stages while the model runs (behind whatever was inserted there)."""

    def record(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda _m, _i, output: into.__setitem__(name, output)

    hooks = [model.get_submodule(s).register_forward_hook(record(s)) for s in stages]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def changed(model: nn.Module, changes: Mapping[str, Change]) -> Iterator[None]:
    """Change the outputs of stages for a moment (behind whatever was inserted there).

    >>> model = nn.Sequential(nn.Identity())
    >>> with changed(model, {"0": lambda x: x + 1}):
    ...     print(model(torch.zeros(2)))
    tensor([1., 1.])
    """
    hooks = [
        model.get_submodule(s).register_forward_hook(_Inserted(change))
        for s, change in changes.items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def eval_mode(model: nn.Module, but: tuple[type[nn.Module], ...] = ()) -> Iterator[None]:
    """Evaluation mode for a moment, `but` for some kinds; every module gets its own mode back."""
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    for module, _ in modes:
        if isinstance(module, but):
            module.training = True
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def tensors_of(model: nn.Module) -> Tree:
    """All parameters and persistent buffers of a model, by name; a shared one by its first.

    >>> two = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> two[1].weight = two[0].weight
    >>> list(tensors_of(two))
    ['0.weight']
    """
    found: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), (name, tensor))
    return dict(found.values())


def owners(model: nn.Module) -> dict[str, nn.Module]:
    """For every tensor's name, the module that holds it.

    >>> type(owners(nn.Sequential(nn.Linear(1, 1)))["0.weight"]).__name__
    'Linear'
    """
    found = {}
    for name in tensors_of(model):
        path, _, _ = name.rpartition(".")
        found[name] = model.get_submodule(path)
    return found


class _Inserted:
    """A forward hook that passes a module's output through a layer; it survives deep copies."""

    def __init__(self, layer: Change) -> None:
        self.layer = layer

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return self.layer(output)


def insert_after(model: nn.Module, stage: str, name: str, layer: nn.Module) -> None:
    """Put a layer behind a stage of the model, registered as the top-level module `name`."""
    stages: tuple[str, ...] = getattr(model, "stages", ())
    if stage not in stages:
        raise UnknownName("stage", stage, stages)
    if hasattr(model, name):
        raise BadModel(f"the model has a module '{name}' already: choose another name")
    model.add_module(name, layer)
    model.get_submodule(stage).register_forward_hook(_Inserted(layer))


class _Preceding:
    """A forward hook that passes a module's input through a layer; it survives deep copies."""

    def __init__(self, layer: Change) -> None:
        self.layer = layer

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        return self.layer(inputs[0])


def insert_first(model: nn.Module, shape: tuple[int, ...], name: str, layer: nn.Module) -> None:
    """Put a layer in front of the model, registered as the top-level module `name`.

    It goes before the first stage, which must take the inputs themselves, or before the module that
    the model names as its `entry`; `shape` is of one input.
    """
    stages: tuple[str, ...] = getattr(model, "stages", ())
    stages = (getattr(model, "entry", ""), *stages) if hasattr(model, "entry") else stages
    if hasattr(model, name):
        raise BadModel(f"the model has a module '{name}' already: choose another name")
    if not stages or not _takes_inputs(model, stages[0], shape):
        first = f"'{stages[0]}' takes something else" if stages else "there is none"
        raise BadModel(
            f"'{name}' has to stand before the first stage, as the first to see the inputs, but "
            f"{first}: name the part of the network that takes the inputs as its first stage"
        )
    model.add_module(name, layer)
    # in front of what others put there before, as it would be in front of the model
    model.get_submodule(stages[0]).register_forward_pre_hook(_Preceding(layer), prepend=True)


def _takes_inputs(model: nn.Module, stage: str, shape: tuple[int, ...]) -> bool:
    """Whether the input of a stage is that of the model."""
    taken: list[object] = []
    hook = model.get_submodule(stage).register_forward_pre_hook(
        lambda module, inputs: taken.append(inputs[0]), prepend=True
    )
    probe = _probe(model, shape)
    try:
        with torch.no_grad(), eval_mode(model):
            model.features(probe)  # type: ignore[operator]
    finally:
        hook.remove()
    return len(taken) == 1 and taken[0] is probe


def _probe(model: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Two inputs of the model's type and device."""
    like = next(iter(tensors_of(model).values()))
    dtype = like.dtype if like.is_floating_point() else torch.float32
    return torch.zeros((2, *shape), dtype=dtype, device=like.device)


def measure(model: nn.Module, shape: tuple[int, ...]) -> tuple[int, dict[str, tuple[int, ...]]]:
    """Width (channels) of the features, and the shape of each stage's output for one sample."""
    probe = _probe(model, shape)
    seen: dict[str, Tensor] = {}
    stages: tuple[str, ...] = tuple(getattr(model, "stages", ()))
    with torch.no_grad(), eval_mode(model), tapped(model, stages, seen):
        z = model.features(probe)  # type: ignore[operator]
        model.head(z)  # type: ignore[operator]
    for stage in stages:
        if stage not in seen:
            raise BadModel(
                f"stage '{stage}' never runs in features(x): name stages that the features pass "
                "through"
            )
    if tuple(seen) != stages:
        raise BadModel(
            f"stages are named as {', '.join(stages)}, but run as {', '.join(seen)}: name them in "
            "that order"
        )
    return z.shape[1], {s: tuple(seen[s].shape[1:]) for s in stages}


def clone(model: nn.Module) -> nn.Module:
    """An independent copy of a model, inserted layers included."""
    return copy.deepcopy(model)
