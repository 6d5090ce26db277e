"""Randomness as a value: a key is one 64-bit integer, and a draw is a pure function of a key.

Keys are folded by names (`fold`, on the host) or by numbers (`fold_in`, inside a step, where the
number may be a tensor). Draws hash a counter with SplitMix64 in plain integer tensor operations, so
that they work under `vmap` and CUDA graphs and give the same integers and uniforms on every engine
and device; normals agree to rounding. No global generator is ever touched.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15  # increment of SplitMix64 (Steele, Lea, Flood 2014)
_MASK = (1 << 64) - 1
_CHILD = 0x5851F42D4C957F2D  # separates folded keys from the draws of their parent
_CANDIDATES = 12  # a gamma candidate is accepted with probability > 0.95: all fail in < 1e-15


def _signed(value: int) -> int:
    """The same 64 bits as a two's complement integer, which is what torch stores."""
    value &= _MASK
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift_right(x: Tensor, n: int) -> Tensor:
    return (x >> n) & ((1 << (64 - n)) - 1)


def mix(x: Tensor) -> Tensor:
    """The output function of SplitMix64 on an int64 tensor."""
    x = (x ^ _shift_right(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift_right(x, 31)


def fold(key: int, *names: str | int) -> int:
    """A new key from a key and names, on the host.

    >>> fold(0, "client", "scanner-a") != fold(0, "client", "scanner-b")
    True
    >>> fold(fold(0, "round"), 3) == fold(0, "round", 3)
    True
    """
    for name in names:
        kind = b"s" if isinstance(name, str) else b"i"
        text = kind + str(name).encode()
        digest = hashlib.blake2b(text, digest_size=8, key=(key & _MASK).to_bytes(8, "little"))
        key = _signed(int.from_bytes(digest.digest(), "little"))
    return key


def as_tensor(key: int, device: torch.device | str | None = None) -> Tensor:
    """The key as the int64 tensor that draws take."""
    return torch.tensor(_signed(key), dtype=torch.int64, device=device)


def fold_in(key: Tensor, data: Tensor | int | str) -> Tensor:
    """A new key from a key tensor and a number (or the name of a purpose), inside a step."""
    if isinstance(data, str):
        data = fold(0, data)
    if isinstance(data, int):
        step: int | Tensor = _signed((data + 1) * GOLDEN)
    else:
        step = (data + 1) * _signed(GOLDEN)
    return mix(key + mix((key ^ _signed(_CHILD)) + step))


def bits(key: Tensor, shape: tuple[int, ...] = ()) -> Tensor:
    """64 random bits per element; a key with leading axes gives each of its entries a stream."""
    count = torch.arange(1, math.prod(shape) + 1, device=key.device).reshape(shape)
    return mix(key.reshape(key.shape + (1,) * len(shape)) + count * _signed(GOLDEN))


def uniform(key: Tensor, shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform on [0, 1): multiples of 2^-53 in float64, of 2^-24 otherwise."""
    if dtype == torch.float64:
        return _shift_right(bits(key, shape), 11).to(dtype) * 2.0**-53
    return (_shift_right(bits(key, shape), 40).to(torch.float32) * 2.0**-24).to(dtype)


def normal(key: Tensor, shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal by the Box-Muller transform."""
    work = torch.float64 if dtype == torch.float64 else torch.float32
    radius = torch.sqrt(-2.0 * torch.log1p(-uniform(key, shape, work)))
    angle = (2.0 * math.pi) * uniform(fold_in(key, "angle"), shape, work)
    return (radius * torch.cos(angle)).to(dtype)


def integers(key: Tensor, high: int, shape: tuple[int, ...] = ()) -> Tensor:
    """Integers uniform on 0 … high-1."""
    return (uniform(key, shape, torch.float64) * high).to(torch.int64)


def permutation(key: Tensor, n: int) -> Tensor:
    """A permutation of 0 … n-1 (one per entry of a key with leading axes)."""
    return torch.argsort(bits(key, (n,)), dim=-1, stable=True)


def log_gamma(key: Tensor, alpha: float | Tensor, shape: tuple[int, ...] = ()) -> Tensor:
    """The logarithm of Gamma(alpha, 1) draws, in float64: sound down to tiny alpha.

    Marsaglia and Tsang's method at alpha + 1 with a fixed number of candidates, of which the first
    accepted one is taken (so it runs under vmap), then the boost G(a) = G(a + 1) U^(1/a).
    """
    if not isinstance(alpha, Tensor):  # filled, not copied: a CUDA graph cannot copy from the host
        alpha = torch.full((), alpha, dtype=torch.float64, device=key.device)
    d = alpha + 2.0 / 3.0
    tries = (_CANDIDATES, *shape)
    z = normal(fold_in(key, "normal"), tries, torch.float64)
    u = uniform(fold_in(key, "accept"), tries, torch.float64)
    root = 1.0 + z / torch.sqrt(9.0 * d)
    log_v = 3.0 * torch.log(root.clamp_min(1e-100))
    bound = 0.5 * z * z + d - d * torch.exp(log_v) + d * log_v
    accepted = (root > 0) & (torch.log(u.clamp_min(1e-300)) < bound)
    axis = key.dim()
    first = accepted.to(torch.int8).argmax(dim=axis, keepdim=True)
    chosen = log_v.gather(axis, first).squeeze(axis)
    boost = torch.log(uniform(fold_in(key, "boost"), shape, torch.float64).clamp_min(2.0**-54))
    return torch.log(d) + chosen + boost / alpha


def beta(key: Tensor, a: float, b: float, shape: tuple[int, ...] = ()) -> Tensor:
    """Beta(a, b) draws, in float64."""
    return torch.sigmoid(
        log_gamma(fold_in(key, "a"), a, shape) - log_gamma(fold_in(key, "b"), b, shape)
    )


def dirichlet(key: Tensor, alpha: Tensor) -> Tensor:
    """One Dirichlet draw over the last axis of alpha, in float64."""
    return torch.softmax(log_gamma(key, alpha, tuple(alpha.shape)), dim=-1)
