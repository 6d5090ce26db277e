"""What a model does when it runs, found by running copies: draws that no key reaches, and stacking.

No list of layer types that do or do not work: a list is wrong with the next release of torch.
"""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedshift import keys
from fedshift.draws import apart, keyed
from fedshift.models.contract import first_line
from fedshift.tree import Tree

_ROWS = 2


def unkeyed(model: nn.Module, x: Tensor) -> list[str]:
    """What a forward in train mode draws past `fedshift.draws.keyed`: the module, and from where.

    Such draws are neither repeatable nor a client's own. Found by watching the global generators of
    torch, numpy and Python while a copy of the model runs.

    >>> unkeyed(nn.Sequential(nn.LSTM(2, 2, num_layers=2, dropout=0.5)), torch.ones(3, 1, 2))
    ["0 (LSTM) draws from torch's global generator"]
    """
    found: list[str] = []
    running: list[tuple[dict[str, Any], int]] = []

    def enter(module: nn.Module, args: Any) -> None:
        running.append((_generators(x.device), len(found)))

    def leave(label: str, module: nn.Module, args: Any, out: Any) -> None:
        before, known = running.pop()
        if len(found) > known:  # a part of this module has been named already
            return
        after = _generators(x.device)
        whose = [name for name in before if before[name] != after[name]]
        found.extend(f"{label} draws from {name}'s global generator" for name in whose)

    with apart(model, x) as (network, _):
        for name, module in network.named_modules():
            module.register_forward_pre_hook(enter)
            module.register_forward_hook(functools.partial(leave, _label(name, module)))
        network(x)
    return found


def _generators(device: torch.device) -> dict[str, Any]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    _, words, position, _, _ = np.random.get_state()
    return {
        "torch": [s.numpy().tobytes() for s in states],
        "numpy": (words.tobytes(), position),  # type: ignore[union-attr,attr-defined]
        "Python": random.getstate(),
    }


def _label(name: str, module: nn.Module) -> str:
    kind = type(module).__name__
    return f"{name} ({kind})" if name else kind


def stackable(model: nn.Module, x: Tensor) -> str | None:
    """Whether clients can be stacked on this model: None, or the reason why not in one line.

    Two made-up clients go through a forward and backward in train mode at once, with keyed draws,
    and each must get what it gets alone. Copies run; the model is left as it is.

    >>> stackable(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), torch.randn(4, 2)) is None
    True
    >>> stackable(nn.BatchNorm1d(2, momentum=None), torch.randn(4, 2)).split(":")[0]
    'BatchNorm1d does not run for stacked clients'
    """
    if past := unkeyed(model, x):
        return f"{past[0]}, which no key reaches"
    network = copy.deepcopy(model).train()
    params, buffers, inputs, seeds = _two_clients(network, x)
    alone = [_alone(network, params, buffers, inputs, seeds, k) for k in range(_ROWS)]
    running: list[str] = []
    try:
        with _watched(network, running), torch.enable_grad():
            out = torch.vmap(functools.partial(_forward, network))(params, buffers, inputs, seeds)
            running.append("the backward pass")
            trained = [p for p in params.values() if p.requires_grad]
            grads = torch.autograd.grad(out.square().mean(), trained, allow_unused=True)
    except Exception as error:
        where = running[-1] if running else "the model"
        return f"{where} does not run for stacked clients: {first_line(error)}"
    for k, (expected, after) in enumerate(alone):
        if not _near(out[k], expected) or any(
            not _near(buffers[n][k], b) for n, b in after.items()
        ):
            return "a stacked client does not get what it gets alone: a layer mixes clients"
    if all(g is None for g in grads):
        return "the backward pass reaches no parameter of the model"
    return None


def _forward(network: nn.Module, params: Tree, buffers: Tree, x: Tensor, seed: Tensor) -> Tensor:
    with keyed(seed):
        out = functional_call(network, (params, buffers), (x,))
    return out if isinstance(out, Tensor) else out[0]


def _two_clients(network: nn.Module, x: Tensor) -> tuple[Tree, Tree, Tensor, Tensor]:
    """Two clients of slightly different weights, inputs and keys, stacked."""

    def rows(t: Tensor) -> Tensor:
        scale = torch.tensor([1.0, 0.9], dtype=t.dtype, device=t.device)
        return t.detach() * scale.reshape(-1, *[1] * t.dim())

    params = {
        n: rows(p).requires_grad_(p.requires_grad)
        if p.is_floating_point()
        else torch.stack([p] * 2)
        for n, p in network.named_parameters()
    }
    buffers = {n: torch.stack([b.detach()] * _ROWS) for n, b in network.named_buffers()}
    inputs = rows(x) if x.is_floating_point() else torch.stack([x] * _ROWS)
    seeds = torch.stack([keys.as_tensor(k, x.device) for k in range(_ROWS)])
    return params, buffers, inputs, seeds


def _alone(
    network: nn.Module, params: Tree, buffers: Tree, inputs: Tensor, seeds: Tensor, k: int
) -> tuple[Tensor, Tree]:
    """One client's output, and its buffers afterwards."""
    own = {n: b[k].clone() for n, b in buffers.items()}
    with torch.no_grad():
        out = _forward(network, {n: p[k] for n, p in params.items()}, own, inputs[k], seeds[k])
    return out, own


def _near(a: Tensor, b: Tensor) -> bool:
    """Equal but for rounding: a mixed-up row is off by much more."""
    a, b = a.detach().double(), b.detach().double()
    return torch.allclose(a, b, rtol=1e-2, atol=1e-3 * float(b.abs().max()) if b.numel() else 0.0)


@contextmanager
def _watched(network: nn.Module, running: list[str]) -> Iterator[None]:
    """Keep in `running` which modules are being run, the innermost last."""

    def enter(label: str, module: nn.Module, args: Any) -> None:
        running.append(label)

    def leave(module: nn.Module, args: Any, out: Any) -> None:
        running.pop()

    hooks = []
    for name, module in network.named_modules():
        start = functools.partial(enter, _label(name, module))
        hooks += [module.register_forward_pre_hook(start), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
