"""Image files and PIL images as uint8 arrays of one size."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from fedshift.errors import BadData, BadValue

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
)
Size = tuple[int, int]  # height, width
_GREY = frozenset({"1", "L", "LA"})
_NUMBERED = frozenset({"1", "L", "P"})
_DEEP = frozenset({"I", "F", "I;16", "I;16B", "I;16L", "I;16N"})
_ORIENTATION = 0x0112  # the EXIF entry; from 5 on, height and width change places
_THREADS = 4
_AHEAD = 64  # decoded images that wait at a time,
_WAITING = 256 << 20  # and the bytes that they may take
_LARGEST = 1 << 28  # pixels of an image


@dataclasses.dataclass(frozen=True)
class Header:
    """What an image file says of itself: height and width as seen, and whether it is grey."""

    size: Size
    grey: bool


def header(path: Path) -> Header:
    """Read the head of an image file; pixels are not decoded."""
    try:
        with Image.open(path) as image:
            width, height = image.size
            # Asked for EXIF, a PNG without it at the front would decode everything to look behind.
            silent = image.format == "PNG" and "exif" not in image.info
            turned = not silent and image.getexif().get(_ORIENTATION, 1) >= 5
            check_depth(image, str(path))
            return Header((width, height) if turned else (height, width), image.mode in _GREY)
    except BadData:
        raise
    except Exception as error:  # Pillow's readers raise whatever they stumble over
        raise _broken(path, error) from None


def decode(path: Path, size: Size, grey: bool) -> np.ndarray[Any, Any]:
    """The pixels of a file, uint8 [C, H, W]."""
    try:
        with Image.open(path) as image:
            return pixels(image, size, grey)
    except Exception as error:  # as above
        raise _broken(path, error) from None


def pixels(image: Image.Image, size: Size | None, grey: bool) -> np.ndarray[Any, Any]:
    """The pixels of a PIL image, uint8 [C, H, W], stretched to a size where one is given.

    >>> pixels(Image.new("RGB", (4, 2)), (8, 8), grey=False).shape
    (3, 8, 8)
    """
    upright = ImageOps.exif_transpose(image).convert("L" if grey else "RGB")
    if size is not None and upright.size != (size[1], size[0]):
        upright = upright.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    array = np.asarray(upright, dtype=np.uint8)
    return array[None] if grey else array.transpose(2, 0, 1)


def mask(path: Path, size: Size) -> np.ndarray[Any, Any]:
    """The numbers in a mask file, uint8 [H, W]: its grey values, or places in its palette."""
    try:
        with Image.open(path) as image:
            check_depth(image, str(path))
            if image.mode not in _NUMBERED:
                raise BadData(
                    f"the mask {path} is in colour (mode {image.mode}): save the numbers of the "
                    "classes as a grey or palette image"
                )
            turned = (size[1], size[0])
            fits = image.size == turned
            whole = image if fits else image.resize(turned, Image.Resampling.NEAREST)
            return np.array(whole, dtype=np.uint8)
    except BadData:
        raise
    except Exception as error:  # as above
        raise _broken(path, error) from None


def decode_all(paths: Sequence[Path], size: Size, grey: bool) -> Iterator[np.ndarray[Any, Any]]:
    """The pixels of many files in order, decoded by a few threads that do not run far ahead."""
    rest = iter(paths)
    ahead = max(_THREADS, min(_AHEAD, _WAITING // math.prod((*size, 1 if grey else 3))))
    with ThreadPoolExecutor(_THREADS) as pool:
        while some := list(islice(rest, ahead)):
            yield from pool.map(lambda path: decode(path, size, grey), some)


def headers(paths: Sequence[Path]) -> list[Header]:
    """The heads of many files, in order."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(header, paths))


def check_depth(image: Image.Image, where: str) -> None:
    """Refuse images of more than 8 bits: how to squeeze them is for the user to say."""
    if image.mode in _DEEP:
        raise BadData(
            f"{where} has more than 8 bits per pixel (mode {image.mode}): convert it to 8 bits, or "
            "give the pixels to fedshift.data.arrays as floats"
        )


def as_size(size: int | Sequence[int] | None) -> Size | None:
    """A side or (height, width) as a pair; None stays None.

    >>> as_size(64)
    (64, 64)
    """
    if size is None:
        return None
    pair = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(pair) != 2 or not all(isinstance(n, int) and n >= 1 for n in pair):
        raise BadValue(f"size is {size!r}: give a whole number of pixels, or (height, width)")
    if math.prod(pair) > _LARGEST:
        raise BadValue(
            f"size is {size!r}: images of so many pixels fit nowhere; give a smaller one"
        )
    return pair[0], pair[1]


def _broken(path: Path, error: BaseException) -> BadData:
    reason = " ".join(str(error).split()).replace(str(path), "the file") or type(error).__name__
    return BadData(f"cannot read the image {path} ({reason}): replace or remove it")
