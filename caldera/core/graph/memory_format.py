"""Order of the axes of a value in memory.

An order lists the axes from the slowest to the fastest; None is row major. It does not affect the
value: images of shape (N, C, H, W) keep that shape in any order. Passes choose orders, plans
allocate memory accordingly, and kernels may rely on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from caldera.core.tensor import Shape, complex_of, part_of

if TYPE_CHECKING:
    from caldera.core.graph.node import Spec

Order = tuple[int, ...]

NHWC: Order = (0, 2, 3, 1)
"""Channels last: all channels of a pixel lie side by side."""

_LETTERS = {4: "nchw"}
_OTHERS = "abcdefghijklmnopqrstuvwxyz"


def order_name(order: Order) -> str:
    """Return the order in letters, one an axis, the slowest first.

    >>> order_name((0, 2, 3, 1)), order_name((1, 0))
    ('nhwc', 'ba')
    """
    letters = _LETTERS.get(len(order), _OTHERS)
    return "".join(letters[axis] for axis in order)


def stored_shape(shape: Shape, order: Order | None) -> Shape:
    """Return the lengths of the axes in memory order, slowest first.

    >>> stored_shape((8, 3, 32, 32), (0, 2, 3, 1))
    (8, 32, 32, 3)
    """
    return shape if order is None else tuple(shape[axis] for axis in order)


def laid_out(memory: Any, shape: Shape, order: Order | None) -> Any:
    """Return a value of `shape`, seen in dense memory that holds its elements in this order.

    >>> import numpy as np
    >>> laid_out(np.arange(6), (2, 3), (1, 0)).tolist()
    [[0, 2, 4], [1, 3, 5]]
    """
    stored = memory.reshape(stored_shape(shape, order))
    if order is None:
        return stored
    return stored.transpose([order.index(axis) for axis in range(len(order))])


def dense_strides(shape: Shape, order: Order | None, itemsize: int) -> tuple[int, ...]:
    """Return the distance in bytes between neighbours along each axis, without gaps.

    >>> dense_strides((8, 3, 32, 32), (0, 2, 3, 1), 4)
    (12288, 4, 384, 12)
    """
    strides = [0] * len(shape)
    step = itemsize
    for axis in reversed(range(len(shape)) if order is None else order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def same_memory(shape: Shape, one: Order | None, other: Order | None) -> bool:
    """Return True if both orders place every element alike; axes of length 1 do not count.

    >>> same_memory((8, 1, 28, 28), None, NHWC), same_memory((8, 3, 28, 28), None, NHWC)
    (True, False)
    """
    if one == other or 0 in shape:
        return True
    rows = tuple(range(len(shape)))
    first, second = (
        [axis for axis in (rows if order is None else order) if shape[axis] > 1]
        for order in (one, other)
    )
    return first == second


def seen_as(array: Any, spec: Spec) -> Any:
    """Return memory without gaps as an array of another spec with the same number of bytes.

    >>> import numpy as np
    >>> from caldera.core.graph.node import Spec
    >>> seen_as(np.array([[1 + 2j]]), Spec((1, 2), np.dtype(float))).tolist()
    [[1.0, 2.0]]
    """
    if (array.shape, array.dtype) == (spec.shape, spec.dtype):
        return array
    rows = array.transpose(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))
    return laid_out(rows.reshape(-1).view(spec.dtype), spec.shape, spec.order)


def as_numbers(pairs: Any) -> Any:
    """Return the memory of pairs along a last axis as complex numbers; a ValueError where the two
    parts are no neighbours.

    >>> import numpy as np
    >>> as_numbers(np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [(1+2j), (3+4j)]
    """
    return pairs.view(complex_of(pairs.dtype))[..., 0]


def as_pairs(x: Any) -> Any:
    """Return a view of complex numbers, of any strides, with their parts along a new last axis.

    >>> import numpy as np
    >>> as_pairs(np.array([1 + 2j, 3 + 4j])[::-1]).tolist()
    [[3.0, 4.0], [1.0, 2.0]]
    """
    seen = as_strided(x.view(np.ndarray), (*x.shape, 1), (*x.strides, x.itemsize))
    return seen.view(part_of(x.dtype)).view(type(x))
