"""Changes to whole batches of images or features: crop, mirror, cut out, normalise.

A transform is a function of a batch and of the `Draw` that names its random numbers. It returns a
new array and leaves its argument alone. Each works on all samples at once, and keeps the dtype, so
that images stay bytes until `Normalise` makes floats of them.

Where the samples lie on a device, their batches are made there, if every transform can also be
written as an expression (`lazily`); the numbers drawn are the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from caldera import op
from caldera.data._base import Array, Data
from caldera.data.draw import Draw, LazyDraw
from caldera.errors import ConfigError, DataError, ShapeError
from caldera.graph.ops.leaf import iota
from caldera.lazy import Expr
from caldera.tensor.dtype import float64, int64, is_float, uint8

Size: TypeAlias = int | tuple[int, int]


class Transform(ABC):
    """A change to a whole batch; a new one needs `__call__` alone.

    >>> import numpy as np
    >>> from caldera import data
    >>> class Dim(data.Transform):
    ...     def __call__(self, x, draw):
    ...         return x * draw.uniform(len(x))
    >>> samples = data.ArrayData(np.ones((100, 5), np.float32), transform=Dim())
    >>> bool(samples.batch(np.arange(10))[0].max() < 1)
    True
    """

    @abstractmethod
    def __call__(self, x: Array, draw: Draw) -> Array:
        """The changed batch, from (samples, ...) to (samples, ...)."""

    def lazily(self, x: Expr, draw: LazyDraw) -> Expr | None:
        """The changed batch as an expression; None if it can only be made on the host."""
        return None


TransformLike: TypeAlias = Callable[[Array, Draw], Array] | Sequence[Callable[[Array, Draw], Array]]


class Compose(Transform):
    """Transforms one after the other; a list of transforms means the same.

    >>> import numpy as np
    >>> from caldera import data
    >>> both = data.Compose([data.Crop(2), data.Mirror()])
    >>> both(np.zeros((5, 1, 4, 4)), data.Draw()).shape
    (5, 1, 2, 2)
    """

    def __init__(self, transforms: Sequence[Callable[[Array, Draw], Array]]) -> None:
        self.transforms: list[Callable[[Array, Draw], Array]] = []
        for transform in transforms:
            inner = transform.transforms if isinstance(transform, Compose) else [transform]
            self.transforms += inner
        for transform in self.transforms:
            if not callable(transform):
                raise ConfigError.build(
                    "data.Compose",
                    expected="transforms",
                    got=repr(transform),
                    hint="a transform is called with a batch and a data.Draw",
                )

    def __call__(self, x: Array, draw: Draw) -> Array:
        for number, transform in enumerate(self.transforms):
            x = transform(x, draw.of_transform(number))
        return x

    def lazily(self, x: Expr, draw: LazyDraw) -> Expr | None:
        for number, transform in enumerate(self.transforms):
            if not isinstance(transform, Transform):
                return None
            changed = transform.lazily(x, draw.of_transform(number))
            if changed is None:
                return None
            x = changed
        return x

    def __repr__(self) -> str:
        return f"Compose({self.transforms})"


def as_transform(transform: TransformLike | None) -> Compose | None:
    """One transform, a sequence of them, or None.

    >>> as_transform([Mirror()])
    Compose([Mirror(probability=0.5)])
    """
    if transform is None:
        return None
    return Compose([transform] if callable(transform) else transform)


@dataclass(frozen=True)
class Crop(Transform):
    """A window of `size` (height and width) at a random place, of images framed in zeros.

    `padding` is the width of the frame on every side.

    >>> import numpy as np
    >>> from caldera import data
    >>> images = np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4)
    >>> data.Crop(2)(images, data.Draw(seed=1))[0, 0].tolist()
    [[4, 5], [8, 9]]
    """

    size: Size
    padding: int = 0

    def __post_init__(self) -> None:
        if min(_pair("data.Crop", self.size)) < 1 or self.padding < 0:
            raise ConfigError.build(
                "data.Crop",
                expected="a size of at least 1 and a padding of at least 0",
                got=f"{self.size} and {self.padding}",
            )

    def _places(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """How many places there are for the window, in height and width."""
        wanted = _pair("data.Crop", self.size)
        height, width = (
            have + 2 * self.padding - want + 1
            for have, want in zip(image_size, wanted, strict=True)
        )
        if min(height, width) < 1:
            raise ShapeError.build(
                "data.Crop",
                expected=f"images of at least {wanted[0]}x{wanted[1]} with the padding",
                got=f"{image_size[0]}x{image_size[1]} and padding {self.padding}",
            )
        return height, width

    def __call__(self, x: Array, draw: Draw) -> Array:
        height, width = _image_size("data.Crop", x)
        places = self._places((height, width))
        wanted = _pair("data.Crop", self.size)
        padded = x
        if self.padding:
            frame = 2 * self.padding
            padded = np.zeros((*x.shape[:-2], height + frame, width + frame), x.dtype)
            inside = slice(self.padding, -self.padding)
            padded[..., inside, inside] = x
        windows = sliding_window_view(padded, wanted, axis=(-2, -1))
        top, left = draw.whole(len(x), places).T
        between = (slice(None),) * (x.ndim - 3)
        return windows[(np.arange(len(x)), *between, top, left)]

    def lazily(self, x: Expr, draw: LazyDraw) -> Expr:
        corners = draw.whole(len(x), self._places(_image_size("data.Crop", x)))
        if self.padding:
            x = op.pad(x, [(0, 0)] * (x.ndim - 2) + [(self.padding, self.padding)] * 2)
        for number, length in enumerate(_pair("data.Crop", self.size)):
            axis = x.ndim - 2 + number
            inside = corners[:, number : number + 1] + _numbers(length)
            x = op.take_along_axis(x, _across(inside, x.ndim, axis), axis)
        return x


@dataclass(frozen=True)
class Mirror(Transform):
    """Each image is mirrored left to right with this probability.

    >>> import numpy as np
    >>> from caldera import data
    >>> data.Mirror(1.0)(np.array([[[[1, 2, 3]]]]), data.Draw()).tolist()
    [[[[3, 2, 1]]]]
    """

    probability: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ConfigError.build(
                "data.Mirror", expected="a probability from 0 to 1", got=str(self.probability)
            )

    def __call__(self, x: Array, draw: Draw) -> Array:
        _image_size("data.Mirror", x)
        chosen = draw.uniform(len(x))[:, 0] < self.probability
        mirrored = x.copy()
        mirrored[chosen] = x[chosen][..., ::-1]
        return mirrored

    def lazily(self, x: Expr, draw: LazyDraw) -> Expr:
        _image_size("data.Mirror", x)
        chosen = draw.uniform(len(x)) < self.probability
        return op.where(_across(chosen, x.ndim, x.ndim - 1), op.flip(x, x.ndim - 1), x)


@dataclass(frozen=True)
class Cutout(Transform):
    """A square of zeros in each image, its centre anywhere, so that it may stand out over the edge.

    After `Normalise`, zero is the mean.

    >>> import numpy as np
    >>> from caldera import data
    >>> data.Cutout(2)(np.ones((1, 1, 3, 3), int), data.Draw(seed=3))[0, 0].tolist()
    [[1, 0, 0], [1, 0, 0], [1, 1, 1]]
    """

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError.build("data.Cutout", expected="a size above 0", got=str(self.size))

    def __call__(self, x: Array, draw: Draw) -> Array:
        image_size = _image_size("data.Cutout", x)
        first = draw.whole(len(x), image_size) - self.size // 2
        rows, columns = (
            (np.arange(length) >= start[:, None]) & (np.arange(length) < start[:, None] + self.size)
            for length, start in zip(image_size, first.T, strict=True)
        )
        hidden = rows[:, :, None] & columns[:, None, :]
        between = (1,) * (x.ndim - 3)
        cut = x.copy()
        np.copyto(cut, 0, where=hidden.reshape(len(x), *between, *image_size))
        return cut

    def lazily(self, x: Expr, draw: LazyDraw) -> Expr:
        image_size = _image_size("data.Cutout", x)
        first = draw.whole(len(x), image_size) - self.size // 2
        hidden = None
        for number, length in enumerate(image_size):
            start = first[:, number : number + 1]
            inside = (_numbers(length) >= start) & (_numbers(length) < start + self.size)
            across = _across(inside, x.ndim, x.ndim - 2 + number)
            hidden = across if hidden is None else hidden & across
        return op.where(hidden, 0, x)


@dataclass(frozen=True)
class Normalise(Transform):
    """(x - mean) / std as floats, for each channel (axis 1) or with one number for all.

    Bytes are divided by 255 first, so mean and std are those of images from 0 to 1.

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
            if isinstance(value, Sequence | np.ndarray):
                object.__setattr__(self, name, tuple(float(each) for each in value))
        if not (np.isfinite(self.mean).all() and np.isfinite(self.std).all()):
            raise ConfigError.build("data.Normalise", expected="finite numbers", got=repr(self))
        if np.min(self.std) <= 0:
            raise ConfigError.build("data.Normalise", expected="std above 0", got=str(self.std))

    @classmethod
    def of(cls, data: Data) -> Normalise:
        """What makes mean 0 and standard deviation 1 of each channel of `data`.

        A channel that never changes is only shifted.

        >>> import numpy as np
        >>> from caldera import data
        >>> data.Normalise.of(data.ArrayData(np.array([[1.0, 5.0], [3.0, 5.0]])))
        Normalise(mean=(2.0, 5.0), std=(1.0, 1.0))
        """
        if not len(data) or not data.shape:
            raise DataError.build(
                "data.Normalise.of",
                expected="samples with at least one axis",
                got=f"{len(data)} of shape {data.shape}",
            )
        mean, variance = _channel_statistics(data)
        std = np.sqrt(variance)
        std[std == 0] = 1
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    def __call__(self, x: Array, draw: Draw) -> Array:
        factor, shift, dtype = self._line(x)
        result = np.multiply(x, factor, dtype=factor.dtype)
        result += shift
        return result.astype(dtype, copy=False)

    def lazily(self, x: Expr, draw: LazyDraw) -> Expr:
        factor, shift, dtype = self._line(x)
        return op.cast(op.cast(x, factor.dtype) * factor + shift, dtype)

    def _line(self, x: Array | Expr) -> tuple[Array, Array, np.dtype[Any]]:
        """Factor and shift, in the dtype to compute in, and the dtype of the result."""
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
        dtype = x.dtype if is_float(x.dtype) else np.dtype(np.float32)
        work = np.dtype(np.float64) if dtype == float64 else np.dtype(np.float32)
        return _along_channels(factor, x.ndim, work), _along_channels(shift, x.ndim, work), dtype


def _along_channels(values: Array, axes: int, dtype: np.dtype[Any]) -> Array:
    """Numbers for each channel, shaped to meet axis 1 of a batch."""
    values = values.astype(dtype)
    return values.reshape(-1, *(1,) * (axes - 2)) if values.ndim else values


def _channel_statistics(data: Data, batch_size: int = 1000) -> tuple[Array, Array]:
    """Mean and variance of each channel; batches are merged by Chan's formula, which keeps digits.

    >>> from caldera.data.array_data import ArrayData
    >>> mean, variance = _channel_statistics(ArrayData(np.array([[1e9], [1e9 + 2]])), batch_size=1)
    >>> (mean - 1e9).tolist(), variance.tolist()
    ([1.0], [1.0])
    """
    channels = data.shape[0]
    count = 0
    mean = np.zeros(channels)
    squares = np.zeros(channels)
    for start in range(0, len(data), batch_size):
        x = data.batch(np.arange(start, min(start + batch_size, len(data))))[0]
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


def _pair(where: str, size: Size) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(each, int) for each in pair):
        raise ConfigError.build(where, expected="a size or (height, width)", got=repr(size))
    return pair


def _numbers(length: int) -> Expr:
    """0 to `length` - 1."""
    return Expr(iota(shape=(length,), axis=0, dtype=int64))


def _across(values: Expr, axes: int, axis: int) -> Expr:
    """Values of shape (samples, n) as ones of a batch with `axes` axes: n along this axis."""
    shape = [1] * axes
    shape[0], shape[axis] = values.shape
    return op.reshape(values, shape)


def _image_size(where: str, x: Array | Expr) -> tuple[int, int]:
    if x.ndim < 3:
        raise ShapeError.build(
            where,
            expected="a batch of images, (samples, channels, height, width)",
            got=f"shape {x.shape}",
        )
    return x.shape[-2], x.shape[-1]
