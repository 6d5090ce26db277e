"""Keyed randomness inside networks: dropout and its kin draw from a key, not from a generator.

`keyed(key)` is a mode around a forward: every random function of torch that the network calls, in a
module or by itself, is answered from the key and the number of the draw. So a client's draws are
the same in a loop, under `torch.vmap` (enter the mode inside the mapped function) and in a CUDA
graph. What C++ draws by itself (recurrent layers' dropout) cannot be answered:
`fedshift.models.unkeyed` finds it.
"""

from __future__ import annotations

import copy
import functools
import math
import random
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from fedshift import keys
from fedshift.errors import BadModel, BadValue

Handler = Callable[..., Any]


class Keyed(TorchFunctionMode):
    """The mode that `keyed` makes; `drawn` collects the names of the functions that drew."""

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key = key
        self.drawn: set[str] = set()
        self._sites = 0
        self._depth = 0

    def __enter__(self) -> Keyed:
        if self._depth == 0:  # entered anew, not for the inside of a composite
            self._sites = 0
        self._depth += 1
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self._depth -= 1
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _COMPOSITES:
            with self:
                return _undiverted(func)(*args, **kwargs)
        handler = _HANDLERS.get(func)
        if handler is None:
            return func(*args, **kwargs)
        before = self._sites
        result = handler(self, func, *args, **kwargs)
        if self._sites > before:
            self.drawn.add(resolve_name(func) or func.__name__)
        return result

    def site(self) -> Tensor:
        """The key of the next draw."""
        self._sites += 1
        return keys.fold_in(self.key, self._sites)

    def uniform(self, shape: Any, dtype: torch.dtype, device: Any = None) -> Tensor:
        """Uniform on [0, 1), the next draw."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return keys.uniform(self.site(), tuple(shape), wide).to(device=device, dtype=dtype)

    def normal(self, shape: Any, dtype: torch.dtype, device: Any = None) -> Tensor:
        """Standard normal, the next draw."""
        return keys.normal(self.site(), tuple(shape), dtype).to(device=device)


def keyed(key: Tensor) -> Keyed:
    """A context in which a network's random draws come from a key.

    Args:
        key: a 0-d int64 tensor on the network's device; inside `torch.vmap` one of a batch. The
            draws are numbered from the entry: the same key gives the same draws.

    >>> x = torch.ones(2, 5)
    >>> with keyed(keys.as_tensor(1)):
    ...     a = F.dropout(x, 0.5)
    >>> with keyed(keys.as_tensor(1)):
    ...     print(torch.equal(a, nn.Dropout(0.5)(x)))
    True
    """
    return Keyed(key)


# -- dropout -----------------------------------------------------------------------------------


def _keep(draw: Keyed, x: Tensor, p: float, shape: Any) -> Tensor:
    """Which elements stay; from float32 uniforms whatever x is, so that masks agree over types."""
    if not 0.0 <= p <= 1.0:
        raise BadValue(f"dropout probability is {p}: give a number from 0 to 1")
    return draw.uniform(shape, torch.float32, x.device) >= p


def _drop(draw: Keyed, x: Tensor, p: float, shape: Any, inplace: bool) -> Tensor:
    factor = _keep(draw, x, p, shape).to(x.dtype) / (1.0 - p if p < 1.0 else 1.0)
    return x.mul_(factor) if inplace else x * factor


def _alpha(draw: Keyed, x: Tensor, p: float, shape: Any, inplace: bool) -> Tensor:
    """Dropout for SELU: dropped elements take SELU's floor, then mean and variance are restored."""
    floor = -1.7580993408473766  # -scale * alpha of SELU
    if p == 1.0:
        out = x * 0.0
    else:
        keep = _keep(draw, x, p, shape)
        a = ((1.0 - p) * (1.0 + p * floor**2)) ** -0.5
        out = a * torch.where(keep, x, floor) - a * p * floor
    return x.copy_(out) if inplace else out


def _channels(x: Tensor, unbatched: int) -> tuple[int, ...]:
    """The shape of a mask over whole channels; x of `unbatched` axes has no axis of samples."""
    lead = 1 if x.dim() == unbatched else 2
    return (*x.shape[:lead], *[1] * (x.dim() - lead))


def _dropout(apply: Handler, shape: Callable[[Tensor], Any], default: bool = True) -> Handler:
    """A handler in the signature of torch.nn.functional; `default` is its `training`."""

    def handle(
        draw: Keyed,
        func: Any,
        input: Tensor,
        p: float = 0.5,
        training: bool = default,
        inplace: bool = False,
    ) -> Tensor:
        if p == 0.0 or not training:
            return input
        result: Tensor = apply(draw, input, p, shape(input), inplace)
        return result

    return handle


def _native(apply: Handler, shape: Callable[[Tensor], Any], inplace: bool = False) -> Handler:
    """A handler in the signature of torch.dropout and its kin."""
    handle = _dropout(apply, shape)

    def of_torch(draw: Keyed, func: Any, input: Tensor, p: float, train: bool) -> Any:
        return handle(draw, func, input, p, train, inplace)

    return of_torch


def _attention(
    draw: Keyed,
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Scaled dot-product attention written out, since the fused kernels drop by themselves."""
    if dropout_p == 0.0:
        more = {"scale": scale, "enable_gqa": enable_gqa}
        return func(query, key, value, attn_mask, dropout_p, is_causal, **more)
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(times, -3) for t in (key, value))
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    score = (query * scale) @ key.transpose(-2, -1)
    if is_causal:
        ones = torch.ones(score.shape[-2:], dtype=torch.bool, device=score.device)
        score = score.masked_fill(~ones.tril(), -math.inf)
    if attn_mask is not None:
        soft = attn_mask.dtype != torch.bool
        score = score + attn_mask if soft else score.masked_fill(~attn_mask, -math.inf)
    # A query that may look at nothing gives zeros, as torch's kernels do, and no NaN.
    blind = (score == -math.inf).all(-1, keepdim=True)
    weight = score.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
    return _drop(draw, weight.to(value.dtype), dropout_p, weight.shape, False) @ value


def _rrelu(
    draw: Keyed,
    func: Any,
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Any:
    if not training:
        return func(input, lower, upper, training, inplace)
    slope = lower + (upper - lower) * draw.uniform(input.shape, input.dtype, input.device)
    out = torch.where(input >= 0, input, slope * input)
    return input.copy_(out) if inplace else out


# -- plain draws -------------------------------------------------------------------------------


def _size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    size = kwargs.get("size", args)
    return tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)


def _finish(value: Tensor, kwargs: dict[str, Any], like: Tensor | None = None) -> Tensor:
    """The options that all factories share; `generator` is what the key replaces."""
    if kwargs.get("out") is not None:
        raise BadModel("a keyed draw cannot be written to out=…: take the returned tensor instead")
    device = kwargs.get("device")
    if device is None:
        device = torch.get_default_device() if like is None else like.device
    value = value.to(device)
    return value.requires_grad_() if kwargs.get("requires_grad") else value


def _floats(sample: Callable[..., Tensor]) -> tuple[Handler, Handler]:
    """The handlers of torch.rand and torch.rand_like, or of their normal counterparts."""

    def make(draw: Keyed, func: Any, *args: Any, **kwargs: Any) -> Tensor:
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        return _finish(sample(draw, _size(args, kwargs), dtype), kwargs)

    def make_like(draw: Keyed, func: Any, input: Tensor, **kwargs: Any) -> Tensor:
        value = sample(draw, input.shape, kwargs.get("dtype") or input.dtype)
        return _finish(value, kwargs, input)

    return make, make_like


def _integers(draw: Keyed, low: int, high: int, size: Any, kwargs: dict[str, Any]) -> Tensor:
    value = low + keys.integers(draw.site(), high - low, tuple(size))
    return value.to(kwargs.get("dtype") or torch.int64)


def _randint(draw: Keyed, func: Any, *args: Any, **kwargs: Any) -> Tensor:
    bounds = list(args)
    size = kwargs["size"] if "size" in kwargs else bounds.pop()
    bounds += [kwargs[name] for name in ("low", "high") if name in kwargs]
    low, high = bounds if len(bounds) == 2 else (0, bounds[0])
    return _finish(_integers(draw, low, high, size, kwargs), kwargs)


def _randint_like(draw: Keyed, func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    bounds = [*args, *(kwargs[name] for name in ("low", "high") if name in kwargs)]
    low, high = bounds if len(bounds) == 2 else (0, bounds[0])
    kwargs = {**kwargs, "dtype": kwargs.get("dtype") or input.dtype}
    return _finish(_integers(draw, low, high, input.shape, kwargs), kwargs, input)


def _randperm(draw: Keyed, func: Any, n: int, **kwargs: Any) -> Tensor:
    value = keys.permutation(draw.site(), n).to(kwargs.get("dtype") or torch.int64)
    return _finish(value, kwargs)


def _normal(
    draw: Keyed, func: Any, mean: Any, std: Any = 1.0, size: Any = None, **kwargs: Any
) -> Tensor:
    like = next((t for t in (mean, std) if isinstance(t, Tensor)), None)
    if like is None:
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        return _finish(mean + std * draw.normal(size, dtype), kwargs)
    shape = (torch.as_tensor(mean) + torch.as_tensor(std)).shape
    noise = _finish(draw.normal(shape, like.dtype), kwargs, like)
    out: Tensor = mean + std * noise
    return out


def _bernoulli(draw: Keyed, func: Any, input: Tensor, p: Any = None, **kwargs: Any) -> Tensor:
    chance = input if p is None else p
    one = draw.uniform(input.shape, _float_type(chance), input.device) < chance
    return _finish(one.to(input.dtype), kwargs, input)


def _float_type(like: Any) -> torch.dtype:
    return (
        torch.float64 if isinstance(like, Tensor) and like.dtype == torch.float64 else torch.float32
    )


def _multinomial(
    draw: Keyed, func: Any, input: Tensor, num_samples: int, replacement: bool = False, **kw: Any
) -> Tensor:
    """By Gumbel noise: the largest of log p + G is a draw, the n largest are n without return."""
    shape = (*input.shape[:-1], num_samples if replacement else 1, input.shape[-1])
    u = draw.uniform(shape, _float_type(input), input.device)
    noisy = input.log().unsqueeze(-2) - (-torch.log1p(-u).clamp_min(-1e30)).clamp_min(1e-30).log()
    return noisy.argmax(-1) if replacement else noisy.squeeze(-2).topk(num_samples, -1).indices


# In place: the tensor must have the client axis already, which `_empty` sees to.


def _bernoulli_(draw: Keyed, func: Any, self: Tensor, p: Any = 0.5, **kwargs: Any) -> Tensor:
    return self.copy_(draw.uniform(self.shape, _float_type(p), self.device) < p)


def _uniform_(draw: Keyed, func: Any, self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    named = [kwargs.get("from", kwargs.get("a", 0.0)), kwargs.get("to", kwargs.get("b", 1.0))]
    low, high = [*args, *named[len(args) :]][:2]
    return self.copy_(low + (high - low) * draw.uniform(self.shape, self.dtype, self.device))


def _normal_(
    draw: Keyed, func: Any, self: Tensor, mean: float = 0.0, std: float = 1.0, **kwargs: Any
) -> Tensor:
    return self.copy_(mean + std * draw.normal(self.shape, self.dtype, self.device))


def _exponential_(
    draw: Keyed, func: Any, self: Tensor, lambd: float = 1.0, **kwargs: Any
) -> Tensor:
    u = draw.uniform(self.shape, self.dtype, self.device)
    # Never 0, whose logarithm people take.
    return self.copy_((-torch.log1p(-u) / lambd).clamp_min(torch.finfo(self.dtype).tiny))


def _initialiser(fill: Handler) -> Handler:
    """torch.nn.init fills parameters: past autograd, which forbids writing to them."""

    @torch.no_grad()
    def initialise(draw: Keyed, func: Any, tensor: Tensor, **kwargs: Any) -> Any:
        return fill(draw, func, tensor, **kwargs)

    return initialise


def _empty(draw: Keyed, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Room for a draw gets the client axis, or vmap could not write a client's numbers into it."""
    out, mapped = func(*args, **kwargs), torch._C._functorch.is_batchedtensor
    if mapped(draw.key) and not mapped(out):
        return out + (draw.key * 0).to(device=out.device, dtype=out.dtype)
    return out


def _refuse(draw: Keyed, func: Any, *args: Any, **kwargs: Any) -> Any:
    raise BadModel(
        f"{resolve_name(func) or func} cannot draw from a key: build the draw from torch.rand, "
        "randn, bernoulli, randint, randperm, normal or exponential_"
    )


_RAND, _RAND_LIKE = _floats(Keyed.uniform)
_RANDN, _RANDN_LIKE = _floats(Keyed.normal)


def _shape(x: Tensor) -> Any:
    return x.shape


def _by_channel(unbatched: int) -> Callable[[Tensor], Any]:
    return functools.partial(_channels, unbatched=unbatched)


_HANDLERS: dict[Any, Handler] = {
    F.dropout: _dropout(_drop, _shape),
    F.dropout1d: _dropout(_drop, _by_channel(2)),
    F.dropout2d: _dropout(_drop, _by_channel(0)),  # takes 3 axes for [N, C, L], so it says
    F.dropout3d: _dropout(_drop, _by_channel(4)),
    F.alpha_dropout: _dropout(_alpha, _shape, default=False),
    F.feature_alpha_dropout: _dropout(_alpha, _by_channel(0), default=False),
    torch.dropout: _native(_drop, _shape),
    torch.dropout_: _native(_drop, _shape, inplace=True),
    torch.feature_dropout: _native(_drop, _by_channel(0)),
    torch.feature_dropout_: _native(_drop, _by_channel(0), inplace=True),
    torch.alpha_dropout: _native(_alpha, _shape),
    torch.alpha_dropout_: _native(_alpha, _shape, inplace=True),
    torch.feature_alpha_dropout: _native(_alpha, _by_channel(0)),
    torch.feature_alpha_dropout_: _native(_alpha, _by_channel(0), inplace=True),
    F.scaled_dot_product_attention: _attention,
    F.rrelu: _rrelu,
    torch.rand: _RAND,
    torch.rand_like: _RAND_LIKE,
    torch.randn: _RANDN,
    torch.randn_like: _RANDN_LIKE,
    torch.randint: _randint,
    torch.randint_like: _randint_like,
    torch.randperm: _randperm,
    torch.normal: _normal,
    torch.bernoulli: _bernoulli,
    Tensor.bernoulli: _bernoulli,
    torch.multinomial: _multinomial,
    Tensor.multinomial: _multinomial,
    Tensor.bernoulli_: _bernoulli_,
    Tensor.uniform_: _uniform_,
    nn.init.uniform_: _initialiser(_uniform_),
    Tensor.normal_: _normal_,
    nn.init.normal_: _initialiser(_normal_),
    Tensor.exponential_: _exponential_,
    torch.empty: _empty,
    torch.empty_like: _empty,
    Tensor.new_empty: _empty,
    **dict.fromkeys(
        (
            torch.poisson,
            torch.binomial,
            torch._standard_gamma,
            torch._sample_dirichlet,
            F.fractional_max_pool2d,
            F.fractional_max_pool2d_with_indices,
            F.fractional_max_pool3d,
            F.fractional_max_pool3d_with_indices,
            torch.rrelu,
            torch.rrelu_,
            Tensor.random_,
            Tensor.cauchy_,
            Tensor.geometric_,
            Tensor.log_normal_,
        ),
        _refuse,
    ),
}

# Functions of torch written in Python that draw inside: the mode has to see their insides.
_COMPOSITES = frozenset({F.multi_head_attention_forward, F.gumbel_softmax})


@functools.cache
def _undiverted(func: types.FunctionType) -> Callable[..., Any]:
    """A composite that does not hand itself to the mode again, though its insides do."""

    def never(*args: Any) -> bool:
        return False

    checks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    scope = {**func.__globals__, **dict.fromkeys(checks, never)}
    inside = types.FunctionType(
        func.__code__, scope, func.__name__, func.__defaults__, func.__closure__
    )
    inside.__kwdefaults__ = func.__kwdefaults__
    return inside


# -- what a model draws ------------------------------------------------------------------------


def uses_randomness(model: nn.Module, x: Tensor) -> list[str]:
    """The random functions that a forward in train mode calls, by name; the mode costs time.

    Args:
        model: left as it is: a copy runs.
        x: an input of the model.

    >>> uses_randomness(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), torch.ones(1, 2))
    ['torch.nn.functional.dropout']
    """
    with apart(model, x) as (network, mode):
        network(x)
    return sorted(mode.drawn)


@contextmanager
def apart(model: nn.Module, x: Tensor) -> Iterator[tuple[nn.Module, Keyed]]:
    """A copy in train mode under a mode of its own, with all generators put back at the end.

    >>> with apart(nn.Dropout(0.5).eval(), torch.ones(3)) as (network, mode):
    ...     print(network.training)
    True
    """
    mode, network = keyed(keys.as_tensor(0, x.device)), copy.deepcopy(model).train()
    python, numeric = random.getstate(), np.random.get_state()
    devices = [x.device] if x.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices), torch.no_grad(), mode:
            yield network, mode
    finally:
        random.setstate(python)
        np.random.set_state(numeric)
