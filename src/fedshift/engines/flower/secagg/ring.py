"""Vectors of ring elements: whole numbers in, masks on and off, sums out.

The ring is that of the machine's unsigned integers, so that additions wrap by themselves. A mask is
the key stream of AES-256 in counter mode under a seed that is used for nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[Any]
Numbers = NDArray[np.int64]
_DTYPES: dict[int, Any] = {32: np.dtype("<u4"), 64: np.dtype("<u8")}
_PIECE = 1 << 20  # elements masked at a time
ZERO = bytes(16)  # where a seed's counter begins


def into(numbers: Numbers, width: int) -> Vector:
    """Whole numbers as elements of the ring.

    >>> into(np.array([1, -1]), 32)
    array([         1, 4294967295], dtype=uint32)
    """
    elements: Vector = numbers.astype(np.int64).view(np.uint64).astype(_DTYPES[width])
    return elements


def out_of(vector: Vector) -> Numbers:
    """Elements of the ring as the whole numbers that are nearest to 0.

    >>> out_of(into(np.array([1, -1]), 32) + into(np.array([2, -3]), 32))
    array([ 3, -4])
    """
    signed = np.dtype(f"<i{vector.dtype.itemsize}")
    return vector.view(signed).astype(np.int64)


def mask(vector: Vector, seed: bytes, sign: int) -> None:
    """Add what a seed stands for to a vector (sign 1), or take it away (-1), in place.

    >>> vector = into(np.arange(5), 64)
    >>> mask(vector, bytes(32), 1)
    >>> bool((vector > 9).all())
    True
    >>> mask(vector, bytes(32), -1)
    >>> out_of(vector)
    array([0, 1, 2, 3, 4])
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    stream = Cipher(algorithms.AES(seed), modes.CTR(ZERO)).encryptor()
    for start in range(0, len(vector), _PIECE):
        piece = vector[start : start + _PIECE]
        noise = np.frombuffer(stream.update(bytes(piece.nbytes)), vector.dtype)
        if sign > 0:
            piece += noise
        else:
            piece -= noise
