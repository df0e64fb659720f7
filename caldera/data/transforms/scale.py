"""Bytes to floats: the last thing that happens to images, unless a stage has made floats of them.

Values stay in their small dtype until something needs more: bytes take a quarter of the memory and
of the time to copy, on the way through a pipeline and on the way to a device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caldera import op
from caldera.data.random_draws import Draw, LazyDraw
from caldera.data.sources.base import Array
from caldera.data.transforms.stage import Transform
from caldera.errors import ConfigError
from caldera.lazy import Expr
from caldera.tensor.dtype import float32, uint8

SCALE = 255.0


@dataclass(frozen=True)
class Scale(Transform):
    """Bytes become float32 divided by `scale`; all else stays as it is.

    >>> import numpy as np
    >>> from caldera.data import Draw
    >>> from caldera.data.transforms.scale import Scale
    >>> Scale(255.0)(np.array([255], np.uint8), Draw()).tolist()
    [1.0]
    """

    scale: float

    def __call__(self, x: Array, draw: Draw) -> Array:
        return scaled(x, self.scale)

    def lazily(self, x: Expr, draw: LazyDraw) -> Expr:
        return op.cast(x, float32) / self.scale if x.dtype == uint8 else x


def scaled(x: Array, scale: float | None) -> Array:
    """A batch whose bytes are floats, unless `scale` is None.

    >>> scaled(np.array([255], np.uint8), 255.0).tolist()
    [1.0]
    """
    if scale is None or x.dtype != uint8:
        return x
    return np.divide(x, np.float32(scale), dtype=float32)


def checked_scale(scale: float | None, where: str) -> float | None:
    """A scale that a user gave.

    >>> checked_scale(0.0, "data.ArrayData")
    Traceback (most recent call last):
    caldera.errors.ConfigError: data.ArrayData: expected scale above 0, got 0.0
    """
    if scale is not None and not scale > 0:
        raise ConfigError.build(where, expected="scale above 0", got=str(scale))
    return scale
