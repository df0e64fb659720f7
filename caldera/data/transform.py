"""Changes to whole batches of images or features: crop, mirror, cut out, normalise.

A transform is a function of a batch and of the `Draw` that names its random numbers. It returns a
new array and leaves its argument alone. Each works on all samples at once, and keeps the dtype, so
that images stay bytes until `Normalise` makes floats of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from caldera.data._base import Array, Data
from caldera.data.draw import Draw
from caldera.errors import ConfigError, DataError, ShapeError
from caldera.tensor.dtype import float64, is_float, uint8

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

    def __call__(self, x: Array, draw: Draw) -> Array:
        height, width = _image_size("data.Crop", x)
        wanted = _pair("data.Crop", self.size)
        frame = 2 * self.padding
        places = (height + frame - wanted[0] + 1, width + frame - wanted[1] + 1)
        if min(places) < 1:
            raise ShapeError.build(
                "data.Crop",
                expected=f"images of at least {wanted[0]}x{wanted[1]} with the padding",
                got=f"{height}x{width} and padding {self.padding}",
            )
        padded = x
        if self.padding:
            padded = np.zeros((*x.shape[:-2], height + frame, width + frame), x.dtype)
            inside = slice(self.padding, -self.padding)
            padded[..., inside, inside] = x
        windows = sliding_window_view(padded, wanted, axis=(-2, -1))
        top, left = draw.whole(len(x), places).T
        between = (slice(None),) * (x.ndim - 3)
        return windows[(np.arange(len(x)), *between, top, left)]


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
        result = np.multiply(x, _along_channels(factor, x.ndim, work), dtype=work)
        result += _along_channels(shift, x.ndim, work)
        return result.astype(dtype, copy=False)


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


def _image_size(where: str, x: Array) -> tuple[int, int]:
    if x.ndim < 3:
        raise ShapeError.build(
            where,
            expected="a batch of images, (samples, channels, height, width)",
            got=f"shape {x.shape}",
        )
    return x.shape[-2], x.shape[-1]
