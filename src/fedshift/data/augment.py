"""How a batch of raw samples becomes the model's input: scaling, augmentation, normalisation.

Every operation works on the whole batch at once and draws from one key per sample, so that a sample
is augmented alike however it is batched, on every engine. Nothing here loops over samples, waits
for the device, or makes a tensor on the host: a step that calls a pipeline can be captured.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedshift.data import color, warp
from fedshift.errors import BadData, BadValue, UnknownName
from fedshift.hparam import check_fields, check_names, hp, hypers
from fedshift.keys import fold_in, integers, normal, uniform


@dataclasses.dataclass(frozen=True)
class Operation:
    """One random change of a float batch; a subclass says which."""

    def __post_init__(self) -> None:
        check_fields(self, type(self).__name__)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuse samples of a shape that this operation cannot change."""
        if len(shape) != 3:
            raise BadData(
                f"{type(self).__name__} augments images [C, H, W], but the samples have shape "
                f"{shape}: leave it out of the pipeline"
            )

    def __call__(self, x: Tensor, keys: Tensor) -> Tensor:
        """The batch x [N, C, H, W], changed as the keys [N] say."""
        raise NotImplementedError

    def to_config(self) -> dict[str, Any]:
        """The operation as plain values."""
        return {"name": type(self).__name__, **dataclasses.asdict(self)}


@dataclasses.dataclass(frozen=True)
class Motion(Operation):
    """An operation that moves pixels: where pixels have labels, these move along."""

    def __call__(self, x: Tensor, keys: Tensor) -> Tensor:
        return self.move(x, keys)

    def masks(self, y: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor:
        """Labels of pixels [N, H, W], moved as images of a type are by the same keys."""
        return self.move(y[:, None].to(dtype), keys, nearest=True)[:, 0].to(y.dtype)

    def move(self, x: Tensor, keys: Tensor, nearest: bool = False) -> Tensor:
        """The batch x [N, C, H, W], moved; `nearest` copies pixels instead of mixing them."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Crop(Motion):
    """Pad with black on all sides, then cut a window of the old size out at random."""

    padding: int = hp(4, "pixels of black on each side", low=0)

    def move(self, x: Tensor, keys: Tensor, nearest: bool = False) -> Tensor:
        move = integers(fold_in(keys, "crop"), 2 * self.padding + 1, (2,)) - self.padding
        return warp.shift(x, move[:, 0], move[:, 1], self.padding)


@dataclasses.dataclass(frozen=True)
class ResizedCrop(Motion):
    """Cut out a window of random area and shape (3:4 to 4:3) and stretch it to the old size."""

    low: float = hp(0.7, "smallest share of the area", low=0.01, high=1)
    high: float = hp(1.0, "largest share of the area", low=0.01, high=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise BadValue(
                f"ResizedCrop.low is {self.low:g}, above high = {self.high:g}: swap the two"
            )

    def move(self, x: Tensor, keys: Tensor, nearest: bool = False) -> Tensor:
        area, ratio, across, along = uniform(fold_in(keys, "resized-crop"), (4,), x.dtype).unbind(1)
        area = self.low + (self.high - self.low) * area
        ratio = torch.exp((2 * ratio - 1) * math.log(4 / 3))
        rows, columns = x.shape[-2:]
        # A window of the wanted area that would stick out is narrowed to the image.
        width = columns * torch.sqrt(area * ratio).clamp(max=1.0)
        height = rows * torch.sqrt(area / ratio).clamp(max=1.0)
        left, top = across * (columns - width), along * (rows - height)
        return warp.resize_window(x, left, top, width, height, nearest)


@dataclasses.dataclass(frozen=True)
class Flip(Motion):
    """Mirror left and right."""

    p: float = hp(0.5, "chance that a sample is mirrored", low=0, high=1)

    def move(self, x: Tensor, keys: Tensor, nearest: bool = False) -> Tensor:
        return torch.where(_chance(fold_in(keys, "flip"), self.p, x), x.flip(-1), x)


@dataclasses.dataclass(frozen=True)
class Rotate(Motion):
    """Rotate by an angle uniform on -degrees to degrees; what comes from outside is black."""

    degrees: float = hp(15.0, "largest angle", low=0, high=180)

    def move(self, x: Tensor, keys: Tensor, nearest: bool = False) -> Tensor:
        draw = 2 * uniform(fold_in(keys, "rotate"), (), x.dtype) - 1
        turn = warp.rotate_nearest if nearest else warp.rotate
        return turn(x, draw * math.radians(self.degrees))


@dataclasses.dataclass(frozen=True)
class QuarterTurn(Motion):
    """Turn square images by 0, 90, 180 or 270 degrees."""

    def check_shape(self, shape: tuple[int, ...]) -> None:
        super().check_shape(shape)
        if shape[1] != shape[2]:
            raise BadData(
                f"QuarterTurn turns square images, but the samples have shape {shape}: leave it "
                "out of the pipeline, or resize them"
            )

    def move(self, x: Tensor, keys: Tensor, nearest: bool = False) -> Tensor:
        quarters = integers(fold_in(keys, "quarter-turn"), 4)[:, None, None, None]
        turned = x
        for k in (1, 2, 3):
            turned = torch.where(quarters == k, x.rot90(k, (2, 3)), turned)
        return turned


@dataclasses.dataclass(frozen=True)
class ColorJitter(Operation):
    """Change brightness, contrast, saturation and hue, in this order.

    The first three are multiplied by a factor uniform on max(0, 1 - v) to 1 + v, the hue is turned
    by up to the given share of the colour circle. Images of one channel have neither saturation
    nor hue, and these two leave them as they are.
    """

    brightness: float = hp(0.0, "spread of the brightness factor", low=0)
    contrast: float = hp(0.0, "spread of the contrast factor", low=0)
    saturation: float = hp(0.0, "spread of the saturation factor", low=0)
    hue: float = hp(0.0, "largest turn of the hue", low=0, high=0.5)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        super().check_shape(shape)
        _check_channels(self, shape)

    def __call__(self, x: Tensor, keys: Tensor) -> Tensor:
        draws = uniform(fold_in(keys, "color-jitter"), (4,), x.dtype)
        if self.brightness:
            x = (x * _factor(draws[:, 0], self.brightness)).clamp(0, 1)
        if self.contrast:
            middle = color.grey(x).mean((1, 2, 3), keepdim=True)
            x = _blend(x, middle, _factor(draws[:, 1], self.contrast))
        if self.saturation and x.shape[1] == 3:
            x = _blend(x, color.grey(x), _factor(draws[:, 2], self.saturation))
        if self.hue and x.shape[1] == 3:
            x = color.turn_hue(x, (2 * draws[:, 3] - 1) * self.hue)
        return x


@dataclasses.dataclass(frozen=True)
class Grayscale(Operation):
    """Take the colour out, keeping the number of channels."""

    p: float = hp(0.1, "chance that a sample loses its colour", low=0, high=1)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        super().check_shape(shape)
        _check_channels(self, shape)

    def __call__(self, x: Tensor, keys: Tensor) -> Tensor:
        return torch.where(_chance(fold_in(keys, "grayscale"), self.p, x), color.grey(x), x)


@dataclasses.dataclass(frozen=True)
class Noise(Operation):
    """Add normal noise to every number of a sample of any shape (the result is not clipped)."""

    std: float = hp(0.05, "standard deviation", low=0)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Every shape will do."""

    def __call__(self, x: Tensor, keys: Tensor) -> Tensor:
        return x + self.std * normal(fold_in(keys, "noise"), tuple(x.shape[1:]), x.dtype)


OPERATIONS: dict[str, type[Operation]] = {
    op.__name__: op
    for op in (Crop, ResizedCrop, Flip, Rotate, QuarterTurn, ColorJitter, Grayscale, Noise)
}


def _chance(keys: Tensor, p: float, x: Tensor) -> Tensor:
    """Which samples of an image batch x an operation of chance p hits, as [N, 1, 1, 1]."""
    return (uniform(keys, (), x.dtype) < p)[:, None, None, None]


def _factor(draw: Tensor, spread: float) -> Tensor:
    """A draw on [0, 1) as a factor between max(0, 1 - spread) and 1 + spread, [N, 1, 1, 1]."""
    low = max(0.0, 1.0 - spread)
    return (low + (1.0 + spread - low) * draw)[:, None, None, None]


def _blend(x: Tensor, base: Tensor, factor: Tensor) -> Tensor:
    return (base + factor * (x - base)).clamp(0, 1)


def _check_channels(op: Operation, shape: tuple[int, ...]) -> None:
    if shape[0] not in (1, 3):
        raise BadData(
            f"{type(op).__name__} needs grey or RGB images, but the samples have {shape[0]} "
            "channels: leave it out of the pipeline"
        )


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """Scale, augment, normalise; the default only scales.

    Args:
        mean, std: per channel (or one for all), in the scale 0 to 1; empty means no normalisation.
        augment: operations on training batches, in order.

    >>> pipeline = Pipeline(mean=(0.5,), std=(0.5,), augment=(Flip(p=0.5),))
    >>> x = torch.tensor([[[[0, 255]]]], dtype=torch.uint8)
    >>> pipeline(x).flatten().tolist()
    [-1.0, 1.0]
    >>> Pipeline.from_config(pipeline.to_config()) == pipeline
    True
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augment: tuple[Operation, ...] = ()

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        object.__setattr__(self, "augment", tuple(self.augment))
        if len(self.mean) != len(self.std):
            raise BadValue(
                f"the pipeline has {len(self.mean)} means but {len(self.std)} standard "
                "deviations: give one of each per channel"
            )
        if any(s <= 0 for s in self.std):
            raise BadValue(f"pipeline.std is {self.std}: every value must be above 0")
        for op in self.augment:
            if not isinstance(op, Operation):
                raise BadValue(
                    f"pipeline.augment holds {op!r}: give operations of fedshift.data.augment, "
                    f"such as {', '.join(OPERATIONS)}"
                )

    def __call__(
        self, x: Tensor, keys: Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """The model's input for raw samples x [N, ...].

        Args:
            x: uint8 (divided by 255) or floating point (taken as it is).
            keys: one key per sample, int64 [N]; None switches augmentation off.
            dtype: the type of the result; all arithmetic is done in it.
        """
        self.output_shape(tuple(x.shape[1:]))
        if x.dtype == torch.uint8:
            x = x.to(dtype) / 255.0
        elif x.is_floating_point():
            x = x.to(dtype)
        else:
            raise BadData(f"samples have type {x.dtype}: give uint8 or floating point")
        if keys is not None:
            for position, op in enumerate(self.augment):
                x = op(x, fold_in(keys, position))
        if self.mean:
            x = (x - _per_channel(self.mean, x)) / _per_channel(self.std, x)
        return x

    def labels(self, y: Tensor, keys: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Labels of pixels [N, H, W] moved along with their images, which have the same keys.

        What comes from outside an image is of class 0.

        >>> pipeline = Pipeline(augment=(Flip(p=1.0), Noise()))
        >>> pipeline.labels(torch.tensor([[[0, 1, 2]]]), torch.tensor([5])).tolist()
        [[[2, 1, 0]]]
        """
        for position, op in enumerate(self.augment):
            if isinstance(op, Motion):
                y = op.masks(y, fold_in(keys, position), dtype)
        return y

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one sample after the pipeline; refuses samples that do not fit it."""
        for op in self.augment:
            op.check_shape(shape)
        if len(self.mean) > 1 and (not shape or len(self.mean) != shape[0]):
            raise BadData(
                f"the pipeline normalises {len(self.mean)} channels, but the samples have shape "
                f"{shape}: give one mean and std per channel, or one for all"
            )
        return shape

    def to_config(self) -> dict[str, Any]:
        """The pipeline as plain lists, numbers and words."""
        return {
            "mean": list(self.mean),
            "std": list(self.std),
            "augment": [op.to_config() for op in self.augment],
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Pipeline:
        """The pipeline that `to_config` wrote."""
        known = {f.name for f in dataclasses.fields(cls)}
        for name in config:
            if name not in known:
                raise UnknownName("part of a pipeline", name, known)
        ops = [operation(entry) for entry in config.get("augment", ())]
        return cls(tuple(config.get("mean", ())), tuple(config.get("std", ())), tuple(ops))


def operation(config: Mapping[str, Any]) -> Operation:
    """The operation of a configuration such as {"name": "Crop", "padding": 4}."""
    values = dict(config)
    name = str(values.pop("name", ""))
    if name not in OPERATIONS:
        raise UnknownName("augmentation", name, OPERATIONS)
    check_names(values, hypers(OPERATIONS[name]), name)
    return OPERATIONS[name](**values)


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    try:
        numbers = tuple(float(v) for v in values)
    except (TypeError, ValueError):
        numbers = (math.nan,)
    if not all(map(math.isfinite, numbers)):
        raise BadValue(f"pipeline.{name} is {values!r}: give finite numbers, one per channel")
    return numbers


def _per_channel(values: tuple[float, ...], x: Tensor) -> Tensor:
    # Filled on the device: a copy from the host could not be captured in a CUDA graph.
    column = torch.cat([x.new_full((1,), v) for v in values])
    return column.reshape((1, -1) + (1,) * (x.ndim - 2))
