"""Random changes of brightness, contrast and saturation."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
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
from caldera.errors import ConfigError, ShapeError

_UNIT = 256
"""Factors are whole multiples of 1/256, so that bytes need whole numbers alone."""
_GREY = (77, 150, 29)
"""How bright red, green and blue are, in units of 1/256."""


@dataclass(frozen=True)
class Colour(Transform):
    """Each image gets another brightness, contrast and saturation, in this order.

    Each is multiplied by a factor between 1 - a and 1 + a, evenly drawn; contrast is the distance
    from the image's mean, saturation that from the pixel's grey. Bytes are rounded and stay between
    0 and 255 after each step; floats are neither rounded nor bounded. Saturation needs three
    channels and leaves images of one as they are.

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
            if not 0 <= value <= 1:
                raise ConfigError.build(
                    "data.Colour", expected=f"{field.name} from 0 to 1", got=str(value)
                )

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
        """The smallest factors, in 1/256, and how many there are to choose from."""
        reach = np.rint(np.array([self.brightness, self.contrast, self.saturation]) * _UNIT)
        whole = reach.astype(np.int64)
        return _UNIT - whole, tuple((2 * whole + 1).tolist())

    def _whole_numbers(self, xp: Any, x: Any, factors: Any) -> Any:
        """The changed images, with the functions of NumPy or of `op`."""
        if self.brightness:
            x = _bytes(xp, _nearest(x * _factor(xp, x, factors, 0)))
        if self.contrast:
            mean = xp.sum(x, axis=tuple(range(1, x.ndim)), keepdims=True) // _pixels(x)
            x = _bytes(xp, mean + _nearest((x - mean) * _factor(xp, x, factors, 1)))
        if self.saturation and _has_colours(x):
            parts = [x[:, i : i + 1] * weight for i, weight in enumerate(_GREY)]
            grey = _nearest(parts[0] + parts[1] + parts[2])
            x = _bytes(xp, grey + _nearest((x - grey) * _factor(xp, x, factors, 2)))
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
    """One factor for each image, shaped to meet the batch."""
    return xp.reshape(factors[:, number], (len(factors), *(1,) * (x.ndim - 1)))


def _nearest(product: Any) -> Any:
    """A product with a factor, divided by 256 and rounded."""
    return (product + _UNIT // 2) // _UNIT


def _bytes(xp: Any, x: Any) -> Any:
    return xp.clip(x, 0, 255)


def _pixels(x: Any) -> int:
    return max(math.prod(x.shape[1:]), 1)


def _has_colours(x: Any) -> bool:
    image_size("data.Colour", x)
    channels = x.shape[1] if x.ndim > 3 else 1
    if channels not in (1, 3):
        raise ShapeError.build(
            "data.Colour", expected="1 or 3 channels (axis 1)", got=f"a batch of shape {x.shape}"
        )
    return channels == 3
