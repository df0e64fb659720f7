"""Geometric image transforms: crop, mirror, cutout and rotation by a random angle.

All keep the dtype. In rotations, positions are integer multiples of 1/65536 pixel and weights of
1/256. Bytes therefore need only integer arithmetic, with the same result on every device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add, index
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.graph.ops.base import iota
from caldera.core.tensor.dtype import int64, is_float, uint8
from caldera.data.random_draws import Draw, LazyDraw
from caldera.data.sources.base import Array
from caldera.data.transforms.stage import Transform
from caldera.errors import ShapeError

Size: TypeAlias = int | tuple[int, int]


def pair(where: str, size: Size) -> tuple[int, int]:
    """Return a size as (height, width).

    >>> pair("data.Crop", 3)
    (3, 3)
    """
    try:
        both = (index(size),) * 2  # type: ignore[arg-type]
    except TypeError:
        both = tuple(size)  # type: ignore[arg-type, assignment]
    require(
        len(both) == 2 and all(isinstance(each, int) for each in both),
        where,
        "a size or (height, width)",
        repr(size),
    )
    return both


def image_size(where: str, x: Array | Expr) -> tuple[int, int]:
    """Return the height and width of a batch of images.

    >>> import numpy as np
    >>> image_size("data.Crop", np.zeros((10, 3, 4, 5)))
    (4, 5)
    """
    require(
        x.ndim >= 3,
        where,
        "a batch of images, (samples, channels, height, width)",
        f"shape {x.shape}",
        error=ShapeError,
    )
    return x.shape[-2], x.shape[-1]


def arange(length: int) -> Expr:
    """Return 0 to `length` - 1.

    >>> arange(3).tolist()
    [0, 1, 2]
    """
    return Expr(iota(shape=(length,), axis=0, dtype=int64))


def along_axis(values: Expr, axes: int, axis: int) -> Expr:
    """Return values of shape (samples, n) as ones of a batch with `axes` axes: n along this axis.

    >>> along_axis(op.var("v", (5, 7)), axes=4, axis=2).shape
    (5, 1, 7, 1)
    """
    samples, length = values.shape
    return op.reshape(values, (samples, *(length if n == axis else 1 for n in range(1, axes))))


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

    is_random = True

    size: Size
    padding: int = 0

    def __post_init__(self) -> None:
        require(
            min(pair("data.Crop", self.size)) >= 1 and self.padding >= 0,
            "data.Crop",
            "a size of at least 1 and a padding of at least 0",
            f"{self.size} and {self.padding}",
        )

    def _places(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the number of positions of the window, in height and width."""
        wanted = pair("data.Crop", self.size)
        height, width = (
            have + 2 * self.padding - want + 1 for have, want in zip(size, wanted, strict=True)
        )
        if min(height, width) < 1:
            raise ShapeError.build(
                "data.Crop",
                expected=f"images of at least {wanted[0]}x{wanted[1]} with the padding",
                got=f"{size[0]}x{size[1]} and padding {self.padding}",
            )
        return height, width

    def __call__(self, x: Array, draw: Draw) -> Array:
        height, width = image_size("data.Crop", x)
        places = self._places((height, width))
        wanted = pair("data.Crop", self.size)
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
        corners = draw.whole(len(x), self._places(image_size("data.Crop", x)))
        if self.padding:
            x = op.pad(x, [(0, 0)] * (x.ndim - 2) + [(self.padding, self.padding)] * 2)
        for number, length in enumerate(pair("data.Crop", self.size)):
            axis = x.ndim - 2 + number
            inside = corners[:, number : number + 1] + arange(length)
            x = op.take_along_axis(x, along_axis(inside, x.ndim, axis), axis)
        return x


@dataclass(frozen=True)
class Mirror(Transform):
    """Each image is mirrored left to right with this probability.

    >>> import numpy as np
    >>> from caldera import data
    >>> data.Mirror(1.0)(np.array([[[[1, 2, 3]]]]), data.Draw()).tolist()
    [[[[3, 2, 1]]]]
    """

    is_random = True

    probability: float = 0.5

    def __post_init__(self) -> None:
        require(
            0 <= self.probability <= 1, "data.Mirror", "a probability from 0 to 1", self.probability
        )

    def __call__(self, x: Array, draw: Draw) -> Array:
        image_size("data.Mirror", x)
        chosen = draw.uniform(len(x))[:, 0] < self.probability
        mirrored = x.copy()
        mirrored[chosen] = x[chosen][..., ::-1]
        return mirrored

    def lazily(self, x: Expr, draw: LazyDraw) -> Expr:
        image_size("data.Mirror", x)
        chosen = draw.uniform(len(x)) < self.probability
        return op.where(along_axis(chosen, x.ndim, x.ndim - 1), op.flip(x, x.ndim - 1), x)


@dataclass(frozen=True)
class Cutout(Transform):
    """Square of zeros at a random position in each image; it may cross the border.

    After `Normalise`, zero is the mean.

    >>> import numpy as np
    >>> from caldera import data
    >>> data.Cutout(2)(np.ones((1, 1, 3, 3), int), data.Draw(seed=3))[0, 0].tolist()
    [[1, 0, 0], [1, 0, 0], [1, 1, 1]]
    """

    is_random = True

    size: int

    def __post_init__(self) -> None:
        require(self.size >= 1, "data.Cutout", "a size above 0", self.size)

    def __call__(self, x: Array, draw: Draw) -> Array:
        size = image_size("data.Cutout", x)
        first = draw.whole(len(x), size) - self.size // 2
        rows, columns = (
            (np.arange(length) >= start[:, None]) & (np.arange(length) < start[:, None] + self.size)
            for length, start in zip(size, first.T, strict=True)
        )
        hidden = rows[:, :, None] & columns[:, None, :]
        between = (1,) * (x.ndim - 3)
        cut = x.copy()
        np.copyto(cut, 0, where=hidden.reshape(len(x), *between, *size))
        return cut

    def lazily(self, x: Expr, draw: LazyDraw) -> Expr:
        size = image_size("data.Cutout", x)
        first = draw.whole(len(x), size) - self.size // 2
        bands = []
        for number, length in enumerate(size):
            start = first[:, number : number + 1]
            inside = (arange(length) >= start) & (arange(length) < start + self.size)
            bands.append(along_axis(inside, x.ndim, x.ndim - 2 + number))
        return op.where(bands[0] & bands[1], 0, x)


_ANGLES = 4096
"""Number of possible angles."""
_UNIT = 1 << 16
_WEIGHT = 1 << 8
_FRAME = 2
"""Zeros around an image, so that a place outside has two neighbours there as well."""


@dataclass(frozen=True)
class Rotate(Transform):
    """Rotation of each image about its centre by a random angle of at most `degrees`.

    Pixels are interpolated from the four nearest (bilinear); pixels outside the image are 0.

    >>> import numpy as np
    >>> from caldera import data
    >>> bar = np.zeros((1, 1, 5, 5), np.uint8)
    >>> bar[..., 2, :] = 200
    >>> for row in data.Rotate(90)(bar, data.Draw(seed=1))[0, 0]:
    ...     print(row)
    [0 0 0 0 0]
    [  0   0  17 100 140]
    [ 34 117 200 118  35]
    [140 101  18   0   0]
    [1 0 0 0 0]
    """

    is_random = True

    degrees: float

    def __post_init__(self) -> None:
        require(0 <= self.degrees <= 180, "data.Rotate", "degrees from 0 to 180", self.degrees)

    @cached_property
    def _turns(self) -> NDArray[np.int64]:
        """Cosine and sine of all angles, in units of 1/65536."""
        middles = (np.arange(_ANGLES) + 0.5) / _ANGLES
        angles = np.deg2rad(self.degrees * (2 * middles - 1))
        return np.rint(np.stack([np.cos(angles), np.sin(angles)], 1) * _UNIT).astype(np.int64)

    def __call__(self, x: Array, draw: Draw) -> Array:
        height, width = image_size("data.Rotate", x)
        turns = self._turns[draw.whole(len(x), (_ANGLES,))[:, 0]]
        corners = _corners(np, turns[:, :1], turns[:, 1:], height, width)
        framed = np.zeros((*x.shape[:-2], height + 2 * _FRAME, width + 2 * _FRAME), x.dtype)
        framed[..., _FRAME:-_FRAME, _FRAME:-_FRAME] = x
        planes = framed.reshape(len(x), math.prod(x.shape[1:-2]), math.prod(framed.shape[-2:]))
        result = np.empty((*planes.shape[:2], height * width), x.dtype)
        sums = np.dtype(_sum_dtype(x.dtype))
        corners = [(place, weight.astype(sums)) for place, weight in corners]
        samples = np.arange(len(x))[:, None]
        for channel in range(planes.shape[1]):
            plane = planes[:, channel]
            # One gather of single pixels from a row of all images.
            offset = samples * plane.shape[1]
            flat = np.ascontiguousarray(plane).reshape(-1)
            total: Any = 0
            for place, weight in corners:
                total = total + np.take(flat, place + offset).astype(sums, copy=False) * weight
            result[:, channel] = _mean(total)
        return result.reshape(x.shape)

    def lazily(self, x: Expr, draw: LazyDraw) -> Expr:
        height, width = image_size("data.Rotate", x)
        chosen = draw.whole(len(x), (_ANGLES,))[:, 0]
        turns = op.gather(self._turns, chosen)
        corners = _corners(op, turns[:, :1], turns[:, 1:], height, width)
        framed = op.pad(x, [(0, 0)] * (x.ndim - 2) + [(_FRAME, _FRAME)] * 2)
        planes = op.reshape(
            framed, (len(x), math.prod(x.shape[1:-2]), math.prod(framed.shape[-2:]))
        )
        sums = _sum_dtype(x.dtype)
        parts = (
            op.cast(op.take_along_axis(planes, op.unsqueeze(place, 1), 2), sums)
            * op.unsqueeze(op.cast(weight, sums), 1)
            for place, weight in corners
        )
        return op.reshape(op.cast(_mean(reduce(add, parts)), x.dtype), x.shape)


def _corners(xp: Any, cosine: Any, sine: Any, height: int, width: int) -> list[tuple[Any, Any]]:
    """Return the source pixels of rotated images, with the functions of NumPy or of `op`.

    For each of the four neighbours, these are its index in a framed image and its weight: (samples,
    pixels).
    """
    # Twice the distance from the centre, which is on a pixel or between two.
    down = np.repeat(2 * np.arange(height) - (height - 1), width)
    right = np.tile(2 * np.arange(width) - (width - 1), height)
    row, to_next_row = _floor_and_rest(xp, sine * right + cosine * down, height)
    column, to_next_column = _floor_and_rest(xp, cosine * right - sine * down, width)
    line = width + 2 * _FRAME
    place = row * line + column
    return [
        (place, (_WEIGHT - to_next_row) * (_WEIGHT - to_next_column)),
        (place + 1, (_WEIGHT - to_next_row) * to_next_column),
        (place + line, to_next_row * (_WEIGHT - to_next_column)),
        (place + line + 1, to_next_row * to_next_column),
    ]


def _floor_and_rest(xp: Any, twice: Any, length: int) -> tuple[Any, Any]:
    """Return an index in the framed image and the distance to the next pixel, in 1/256."""
    place = (twice + (length - 1) * _UNIT) // 2
    whole = place // _UNIT
    rest = (place - whole * _UNIT) // (_UNIT // _WEIGHT)
    return xp.clip(whole, -_FRAME, length) + _FRAME, rest


def _sum_dtype(dtype: np.dtype[Any]) -> str:
    """Return the dtype in which four weighted pixels are added."""
    if is_float(dtype):
        return "float64" if dtype == np.float64 else "float32"
    return "int32" if dtype == uint8 else "int64"


def _mean(total: Any) -> Any:
    """Return the weighted mean from the weighted sum; the weights are 65536 together."""
    if is_float(total.dtype):
        return total * (1 / _WEIGHT**2)
    return (total + _WEIGHT**2 // 2) // _WEIGHT**2
