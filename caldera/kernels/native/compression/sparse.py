"""Sparse vectors (indices and values): extraction, encoding, scatter-add, merging.

The caller must ensure that all indices are in range.
"""

from __future__ import annotations

import numpy as np

from caldera.kernels.native.codegen import (
    I32,
    I64,
    Emitter,
    Integer,
    Pointer,
    RegisterValue,
    itemsize,
    native_kernel,
    run_now,
)

_PIECE = 4096


def take_out(vector: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the elements at some places (int32), which are zero after that.

    >>> import numpy as np
    >>> from caldera.kernels.native.compression import take_out
    >>> x = np.array([1.0, 2.0, 3.0])
    >>> take_out(x, np.array([0, 2], np.int32)), x
    (array([1., 3.]), array([0., 2., 0.]))
    """
    values = np.empty(places.size, vector.dtype)
    run_now(
        _move, vector=vector, start=0, places=places, values=values, count=places.size, mode="take"
    )
    return values


def put_only(vector: np.ndarray, places: np.ndarray, values: np.ndarray) -> None:
    """Write values of the vector's dtype at some places (int32, increasing), and zeros elsewhere.

    >>> import numpy as np
    >>> from caldera.kernels.native.compression import put_only
    >>> x = np.ones(3)
    >>> put_only(x, np.array([0, 2], np.int32), np.array([1.0, 2.0]))
    >>> x
    array([1., 0., 2.])
    """
    run_now(
        _put_only,
        vector=vector,
        size=vector.size,
        places=places,
        values=values,
        count=places.size,
    )


def add_at(vector: np.ndarray, places: np.ndarray, values: np.ndarray, start: int = 0) -> None:
    """Add values of the vector's dtype to the elements at some places (int32) of a longer vector,
    of which this one is a part that begins at `start`.

    >>> import numpy as np
    >>> from caldera.kernels.native.compression import add_at
    >>> x = np.ones(3)
    >>> add_at(x, np.array([0, 2], np.int32), np.array([1.0, 2.0]))
    >>> x
    array([2., 1., 3.])
    """
    run_now(
        _move,
        vector=vector,
        start=start,
        places=places,
        values=values,
        count=places.size,
        mode="add",
    )


def not_zero(vector: np.ndarray, begin: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The elements that are not zero: their places (int32), counted from `begin`, and values.

    >>> import numpy as np
    >>> from caldera.kernels.native.compression import not_zero
    >>> not_zero(np.array([0.0, 2.0, 0.0, 3.0]), begin=10)
    (array([11, 13], dtype=int32), array([2., 3.]))
    """
    # One more is written before it is known whether it counts.
    places, values = np.empty(vector.size + 1, np.int32), np.empty(vector.size + 1, vector.dtype)
    found = np.empty(1, np.int64)
    run_now(
        _not_zero,
        vector=vector,
        size=vector.size,
        begin=begin,
        places=places,
        values=values,
        found=found,
    )
    return places[: found[0]], values[: found[0]]


def merge_sorted(
    a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return places (int32, increasing) and values of the sum of two vectors given the same way.

    >>> import numpy as np
    >>> from caldera.kernels.native.compression import merge_sorted
    >>> def sparse(places, values):
    ...     return np.array(places, np.int32), np.array(values, np.float32)
    >>> merge_sorted(sparse([1, 4], [1.0, 2.0]), sparse([0, 4], [5.0, 0.5]))
    (array([0, 1, 4], dtype=int32), array([5. , 1. , 2.5], dtype=float32))
    """
    capacity = a[0].size + b[0].size
    places, values = np.empty(capacity, np.int32), np.empty(capacity, a[1].dtype)
    found = np.zeros(1, np.int64)
    run_now(
        _merge,
        a_places=a[0],
        a_values=a[1],
        a_size=a[0].size,
        b_places=b[0],
        b_values=b[1],
        b_size=b[0].size,
        places=places,
        values=values,
        found=found,
    )
    return places[: found[0]], values[: found[0]]


# --- the kernels


@native_kernel
def _not_zero(
    k: Emitter,
    vector: Pointer,
    size: Integer,
    begin: Integer,
    places: Pointer,
    values: Pointer,
    found: Pointer,
) -> None:
    count = k.variable(0, I64)
    with k.loop(0, size) as i:
        value = vector.load(i)
        places.store(count.value, k.convert(begin + i, I32))
        values.store(count.value, value)
        count.value = count.value + k.convert(value.differs(0.0), I64)
    found.store(0, count.value)


@native_kernel
def _put_only(
    k: Emitter, vector: Pointer, size: Integer, places: Pointer, values: Pointer, count: Integer
) -> None:
    done = k.variable(0, I64)
    # A piece at a time, which then is still in the nearest cache.
    with k.loop(0, size, _PIECE) as begin:
        end = k.minimum(begin + _PIECE, size)
        k.clear_bytes(vector.at(begin), (end - begin) * itemsize(vector.type))
        until = _until(k, places, done.value, count, end)
        with k.loop(done.value, until) as i:
            vector.store(k.convert(places.load(i), I64), values.load(i))
        done.value = until


def _until(
    k: Emitter, places: Pointer, first: RegisterValue, count: RegisterValue, end: RegisterValue
) -> RegisterValue:
    """Return the first of increasing places, from one on, that is not below `end`."""
    low, high = k.variable(first), k.variable(count)
    with k.while_loop(lambda: low.value < high.value):
        middle = (low.value + high.value) // 2
        below = k.convert(places.load(middle), I64) < end
        low.value = k.select(below, middle + 1, low.value)
        high.value = k.select(below, high.value, middle)
    return low.value


@native_kernel
def _move(
    k: Emitter,
    vector: Pointer,
    start: Integer,
    places: Pointer,
    values: Pointer,
    count: Integer,
    mode: str,
) -> None:
    with k.loop(0, count) as i:
        place = k.convert(places.load(i), I64) - start
        if mode == "take":
            values.store(i, vector.load(place))
            vector.store(place, 0.0)
        else:
            vector.store(place, vector.load(place) + values.load(i))


@native_kernel
def _merge(
    k: Emitter,
    a_places: Pointer,
    a_values: Pointer,
    a_size: Integer,
    b_places: Pointer,
    b_values: Pointer,
    b_size: Integer,
    places: Pointer,
    values: Pointer,
    found: Pointer,
) -> None:
    a, b, out = (k.variable(0, I64) for _ in range(3))
    with k.while_loop(lambda: (a.value < a_size) & (b.value < b_size)):
        left, right = a_places.load(a.value), b_places.load(b.value)
        takes_left, takes_right = left <= right, right <= left
        x, y = a_values.load(a.value), b_values.load(b.value)
        # Not x + 0, which would change the sign of a negative zero.
        total = k.select(takes_left, k.select(takes_right, x + y, x), y)
        places.store(out.value, k.minimum(left, right))
        values.store(out.value, total)
        a.value = a.value + k.convert(takes_left, I64)
        b.value = b.value + k.convert(takes_right, I64)
        out.value = out.value + 1
    for at, size, from_places, from_values in (
        (a, a_size, a_places, a_values),
        (b, b_size, b_places, b_values),
    ):
        rest = size - at.value
        k.copy_bytes(places.at(out.value), from_places.at(at.value), rest * 4)
        k.copy_bytes(values.at(out.value), from_values.at(at.value), rest * itemsize(values.type))
        out.value = out.value + rest
    found.store(0, out.value)
