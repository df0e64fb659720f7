"""Intensity transforms: scaling, normalisation, mean subtraction, random colour changes."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caldera import op
from caldera.base.arguments import guard_methods, refusal, require
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import float32, float64, is_float, real_array_of, uint8
from caldera.data.random_draws import Draw, LazyDraw
from caldera.data.sources.base import Array, Data, scaled
from caldera.data.transforms.geometry import image_size
from caldera.data.transforms.stage import Transform
from caldera.errors import ConfigError, DataError, ShapeError


@dataclass(frozen=True)
class PixelScale(Transform):
    """Bytes become float32 divided by `scale`; all else stays as it is.

    >>> import numpy as np
    >>> from caldera.data import Draw
    >>> from caldera.data.transforms.intensity import PixelScale
    >>> PixelScale(255.0)(np.array([255], np.uint8), Draw()).tolist()
    [1.0]
    """

    scale: float

    def __call__(self, x: Array, draw: Draw) -> Array:
        return scaled(x, self.scale)

    def lazily(self, x: Expr, draw: LazyDraw) -> Expr:
        return op.cast(x, float32) / self.scale if x.dtype == uint8 else x


class _Linear(Transform):
    """A transform that multiplies by a factor and adds a shift, as floats."""

    @abstractmethod
    def _line(self, x: Array | Expr) -> tuple[Array, Array]:
        """Return factor and shift in float64: scalars, or arrays that broadcast to the batch."""

    def __call__(self, x: Array, draw: Draw) -> Array:
        factor, shift, dtype = self._parts(x)
        result = np.multiply(x, factor, dtype=factor.dtype)
        result += shift
        return result.astype(dtype, copy=False)

    def lazily(self, x: Expr, draw: LazyDraw) -> Expr:
        factor, shift, dtype = self._parts(x)
        return op.cast(op.cast(x, factor.dtype) * factor + shift, dtype)

    def _parts(self, x: Array | Expr) -> tuple[Array, Array, np.dtype[Any]]:
        """Factor and shift, in the dtype to compute in, and the dtype of the result."""
        dtype = x.dtype if is_float(x.dtype) else np.dtype(np.float32)
        work = np.dtype(np.float64 if dtype == float64 else np.float32)
        factor, shift = (np.asarray(each, work) for each in self._line(x))
        return factor, shift, dtype


@dataclass(frozen=True)
class Normalise(_Linear):
    """(x - mean) / std as floats, per channel (axis 1) or with a single number for all.

    Bytes are divided by 255 first, so mean and std refer to images from 0 to 1.

    >>> import numpy as np
    >>> from caldera import data
    >>> data.Normalise(mean=0.5, std=0.25)(np.array([[0, 255]], np.uint8), data.Draw()).tolist()
    [[-2.0, 2.0]]
    """

    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            value = getattr(self, name)
            several = isinstance(value, Sequence | np.ndarray)
            if several and not len(value):
                raise refusal("data.Normalise", name, "a number, or one for each channel", value)
            made = tuple(float(each) for each in value) if several else float(value)
            object.__setattr__(self, name, made)
        if not (np.isfinite(self.mean).all() and np.isfinite(self.std).all()):
            raise ConfigError.build("data.Normalise", expected="finite numbers", got=repr(self))
        if np.min(self.std) <= 0:
            raise ConfigError.build("data.Normalise", expected="std above 0", got=str(self.std))

    @classmethod
    def of(cls, data: Data) -> Normalise:
        """Return the transform to mean 0 and standard deviation 1 for each channel of `data`.

        A constant channel is only shifted.

        >>> import numpy as np
        >>> from caldera import data
        >>> data.Normalise.of(data.ArrayData(np.array([[1.0, 5.0], [3.0, 5.0]])))
        Normalise(mean=(2.0, 5.0), std=(1.0, 1.0))
        """
        require(
            len(data) and data.shape,
            "data.Normalise.of",
            "samples with at least one axis",
            f"{len(data)} of shape {data.shape}",
            error=DataError,
        )
        mean, variance = _channel_statistics(data)
        std = np.sqrt(variance)
        std[std == 0] = 1
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    def _line(self, x: Array | Expr) -> tuple[Array, Array]:
        # One multiplication and one addition for each element: (x / 255 - mean) / std.
        factor = 1 / np.asarray(self.std, np.float64)
        shift = -np.asarray(self.mean, np.float64) * factor
        if x.dtype == uint8:
            factor = factor / 255
        for values in (factor, shift):
            if values.ndim and (x.ndim < 2 or len(values) != x.shape[1]):
                raise ShapeError.build(
                    "data.Normalise",
                    expected=f"{len(values)} channels (axis 1)",
                    got=f"a batch of shape {x.shape}",
                    hint="data.Normalise.of(data) computes them",
                )
        return _along_channels(factor, x.ndim), _along_channels(shift, x.ndim)


@dataclass(frozen=True, eq=False)
class SubtractMean(_Linear):
    """x - mean as floats: the mean of a whole sample, of each channel (axis 1), or one number.

    Bytes are divided by 255 first, so the mean refers to images from 0 to 1.

    >>> import numpy as np
    >>> from caldera import data
    >>> images = np.array([[[0, 255]], [[255, 255]]], np.uint8)
    >>> centred = data.Pipeline(images, data.SubtractMean.of(data.ArrayData(images)))
    >>> centred.x.tolist()
    [[[-0.5, 0.0]], [[0.5, 0.0]]]
    """

    mean: Array

    def __post_init__(self) -> None:
        mean = real_array_of(self.mean, "data.SubtractMean").astype(np.float64)
        require(np.isfinite(mean).all(), "data.SubtractMean", "finite numbers", "others")
        object.__setattr__(self, "mean", mean)

    @classmethod
    def of(cls, data: Data) -> SubtractMean:
        """Return the transform that subtracts the mean of each element over the samples."""
        require(len(data), "data.SubtractMean.of", "samples", error=DataError)
        total = np.zeros(data.shape)
        for x in _batches(data):
            total += x.sum(axis=0, dtype=np.float64)
        return cls(total / len(data))

    def _line(self, x: Array | Expr) -> tuple[Array, Array]:
        factor = np.asarray(1 / 255 if x.dtype == uint8 else 1.0)
        if self.mean.shape in ((), x.shape[1:]):
            return factor, -self.mean
        if x.ndim > 1 and self.mean.shape == x.shape[1:2]:
            return factor, -_along_channels(self.mean, x.ndim)
        raise ShapeError.build(
            "data.SubtractMean",
            expected=f"samples of shape {self.mean.shape}, or with the same number of channels",
            got=f"a batch of shape {x.shape}",
            hint="data.SubtractMean.of(data) computes the mean",
        )

    def __repr__(self) -> str:
        return f"SubtractMean({self.mean.shape or float(self.mean)})"


def _along_channels(values: Array, axes: int) -> Array:
    """Return numbers for each channel, shaped to meet axis 1 of a batch."""
    return values.reshape(-1, *(1,) * (axes - 2)) if values.ndim else values


def _batches(data: Data, size: int = 1000) -> Iterator[Array]:
    """Yield the inputs of all samples, in batches."""
    for start in range(0, len(data), size):
        yield data.batch(np.arange(start, min(start + size, len(data))))[0]


def _channel_statistics(data: Data, batch_size: int = 1000) -> tuple[Array, Array]:
    """Return mean and variance of each channel.

    Batches are merged by Chan's formula, which keeps digits.

    >>> from caldera.data.sources.indexed_data import ArrayData
    >>> mean, variance = _channel_statistics(ArrayData(np.array([[1e9], [1e9 + 2]])), batch_size=1)
    >>> (mean - 1e9).tolist(), variance.tolist()
    ([1.0], [1.0])
    """
    channels = data.shape[0]
    count = 0
    mean = np.zeros(channels)
    squares = np.zeros(channels)
    for x in _batches(data, batch_size):
        values = x.astype(np.float64).reshape(len(x), channels, -1)
        batch_count = len(x) * values.shape[2]
        batch_mean = values.mean(axis=(0, 2))
        batch_squares = np.square(values - batch_mean[:, None]).sum(axis=(0, 2))
        delta = batch_mean - mean
        total = count + batch_count
        mean += delta * (batch_count / total)
        squares += batch_squares + delta**2 * (count * batch_count / total)
        count = total
    return mean, squares / count


_UNIT = 256
"""Factors are integer multiples of 1/256, so that bytes need only integer arithmetic."""
_GREY = (77, 150, 29)
"""Luminance weights of red, green and blue, in units of 1/256."""


@dataclass(frozen=True)
class Colour(Transform):
    """Random change of brightness, contrast and saturation of each image, in this order.

    Each is multiplied by a factor drawn uniformly from 1 - a to 1 + a. Contrast is the distance
    from the image's mean, saturation the distance from the pixel's grey. Bytes are rounded and
    clipped to 0 and 255 after each step; floats are neither rounded nor clipped. Saturation needs
    three channels and leaves images with a single channel unchanged.

    >>> import numpy as np
    >>> from caldera import data
    >>> grey = np.full((3, 1, 2, 2), 100, np.uint8)
    >>> data.Colour(brightness=0.5, contrast=0.5)(grey, data.Draw())[:, 0, 0, 0].tolist()
    [102, 141, 87]
    """

    is_random = True

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            require(0 <= value <= 1, "data.Colour", f"{field.name} from 0 to 1", value)

    def __call__(self, x: Array, draw: Draw) -> Array:
        lowest, widths = self._range()
        factors = lowest + draw.whole(len(x), widths)
        if is_float(x.dtype):
            return self._floats(x, (factors / _UNIT).astype(x.dtype))
        wide = np.dtype(np.int32 if x.dtype == uint8 else np.int64)
        return self._whole_numbers(np, x.astype(wide), factors.astype(wide)).astype(x.dtype)

    def lazily(self, x: Expr, draw: LazyDraw) -> Expr | None:
        if x.dtype != uint8:
            # The order in which floats are added up decides about their last bits.
            return None
        lowest, widths = self._range()
        factors = op.cast(lowest + draw.whole(len(x), widths), "int32")
        return op.cast(self._whole_numbers(op, op.cast(x, "int32"), factors), uint8)

    def _range(self) -> tuple[NDArray[np.int64], tuple[int, ...]]:
        """Return the smallest factors, in 1/256, and the number of possible factors."""
        reach = np.rint(np.array([self.brightness, self.contrast, self.saturation]) * _UNIT)
        whole = reach.astype(np.int64)
        return _UNIT - whole, tuple((2 * whole + 1).tolist())

    def _whole_numbers(self, xp: Any, x: Any, factors: Any) -> Any:
        """Return the changed images, with the functions of NumPy or of `op`."""
        if self.brightness:
            x = xp.clip(_nearest(x * _factor(xp, x, factors, 0)), 0, 255)
        if self.contrast:
            mean = xp.sum(x, axis=tuple(range(1, x.ndim)), keepdims=True) // max(
                math.prod(x.shape[1:]), 1
            )
            x = xp.clip(mean + _nearest((x - mean) * _factor(xp, x, factors, 1)), 0, 255)
        if self.saturation and _has_colours(x):
            parts = [x[:, i : i + 1] * weight for i, weight in enumerate(_GREY)]
            grey = _nearest(parts[0] + parts[1] + parts[2])
            x = xp.clip(grey + _nearest((x - grey) * _factor(xp, x, factors, 2)), 0, 255)
        return x

    def _floats(self, x: Array, factors: Array) -> Array:
        x = x * _factor(np, x, factors, 0)
        if self.contrast:
            mean = x.mean(axis=tuple(range(1, x.ndim)), keepdims=True, dtype=np.float64)
            x = (mean + (x - mean) * _factor(np, x, factors, 1)).astype(x.dtype)
        if self.saturation and _has_colours(x):
            weights = np.array(_GREY, x.dtype).reshape(-1, *(1,) * (x.ndim - 2)) / _UNIT
            grey = (x * weights.astype(x.dtype)).sum(axis=1, keepdims=True)
            x = grey + (x - grey) * _factor(np, x, factors, 2)
        return x


def _factor(xp: Any, x: Any, factors: Any, number: int) -> Any:
    """Return a random factor for each image, shaped to broadcast with the batch."""
    return xp.reshape(factors[:, number], (len(factors), *(1,) * (x.ndim - 1)))


def _nearest(product: Any) -> Any:
    """Return a product with a factor, divided by 256 and rounded."""
    return (product + _UNIT // 2) // _UNIT


def _has_colours(x: Any) -> bool:
    image_size("data.Colour", x)
    channels = x.shape[1] if x.ndim > 3 else 1
    require(
        channels in (1, 3),
        "data.Colour",
        "1 or 3 channels (axis 1)",
        f"a batch of shape {x.shape}",
        error=ShapeError,
    )
    return channels == 3


guard_methods(Normalise, "of")
guard_methods(SubtractMean, "of")
