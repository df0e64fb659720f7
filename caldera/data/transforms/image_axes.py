"""What stages for images share: sizes, and places in a batch as expressions."""

from __future__ import annotations

from typing import TypeAlias

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.graph.ops.leaf import iota
from caldera.core.tensor.dtype import int64
from caldera.data.sources.base import Array
from caldera.errors import ConfigError, ShapeError

Size: TypeAlias = int | tuple[int, int]


def pair(where: str, size: Size) -> tuple[int, int]:
    """A size as (height, width).

    >>> pair("data.Crop", 3)
    (3, 3)
    """
    both = (size, size) if isinstance(size, int) else tuple(size)
    if len(both) != 2 or not all(isinstance(each, int) for each in both):
        raise ConfigError.build(where, expected="a size or (height, width)", got=repr(size))
    return both


def image_size(where: str, x: Array | Expr) -> tuple[int, int]:
    """The height and width of a batch of images.

    >>> import numpy as np
    >>> image_size("data.Crop", np.zeros((10, 3, 4, 5)))
    (4, 5)
    """
    if x.ndim < 3:
        raise ShapeError.build(
            where,
            expected="a batch of images, (samples, channels, height, width)",
            got=f"shape {x.shape}",
        )
    return x.shape[-2], x.shape[-1]


def arange(length: int) -> Expr:
    """0 to `length` - 1.

    >>> arange(3).tolist()
    [0, 1, 2]
    """
    return Expr(iota(shape=(length,), axis=0, dtype=int64))


def along_axis(values: Expr, axes: int, axis: int) -> Expr:
    """Values of shape (samples, n) as ones of a batch with `axes` axes: n along this axis.

    >>> along_axis(op.var("v", (5, 7)), axes=4, axis=2).shape
    (5, 1, 7, 1)
    """
    shape = [1] * axes
    shape[0], shape[axis] = values.shape
    return op.reshape(values, shape)
