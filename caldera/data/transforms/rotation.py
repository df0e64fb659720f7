"""Rotation of images about their centre, by a random angle.

All places are whole multiples of 1/65536 pixel and all weights of 1/256, so bytes come out of whole
numbers alone: the same on every device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import is_float, uint8
from caldera.data.random_draws import Draw, LazyDraw
from caldera.data.sources.base import Array
from caldera.data.transforms.image_axes import image_size
from caldera.data.transforms.stage import Transform
from caldera.errors import ConfigError

_ANGLES = 4096
"""How many angles there are to choose from."""
_UNIT = 1 << 16
_WEIGHT = 1 << 8
_FRAME = 2
"""Zeros around an image, so that a place outside has two neighbours there as well."""


@dataclass(frozen=True)
class Rotate(Transform):
    """Each image is turned about its centre by an angle of at most this many degrees.

    Pixels are mixed from the four nearest (bilinear); what comes from outside is 0.

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
        if not 0 <= self.degrees <= 180:
            raise ConfigError.build(
                "data.Rotate", expected="degrees from 0 to 180", got=str(self.degrees)
            )

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
        total: Any = None
        for place, weight in corners:
            found = op.take_along_axis(planes, op.unsqueeze(place, 1), 2)
            part = op.cast(found, sums) * op.unsqueeze(op.cast(weight, sums), 1)
            total = part if total is None else total + part
        return op.reshape(op.cast(_mean(total), x.dtype), x.shape)


def _corners(xp: Any, cosine: Any, sine: Any, height: int, width: int) -> list[tuple[Any, Any]]:
    """Where the pixels of turned images come from, with the functions of NumPy or of `op`.

    For each of the four neighbours, its place in a framed image and its weight: (samples, pixels).
    """
    # Twice the distance from the centre, which lies on a pixel or between two.
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
    """A place in the framed image, and how far it is from there to the next, in 1/256."""
    place = (twice + (length - 1) * _UNIT) // 2
    whole = place // _UNIT
    rest = (place - whole * _UNIT) // (_UNIT // _WEIGHT)
    return xp.clip(whole, -_FRAME, length) + _FRAME, rest


def _sum_dtype(dtype: np.dtype[Any]) -> str:
    """The dtype in which four weighted pixels are added."""
    if is_float(dtype):
        return "float64" if dtype == np.float64 else "float32"
    return "int32" if dtype == uint8 else "int64"


def _mean(total: Any) -> Any:
    """The weighted mean from the weighted sum; the weights are 65536 together."""
    if is_float(total.dtype):
        return total * (1 / _WEIGHT**2)
    return (total + _WEIGHT**2 // 2) // _WEIGHT**2
