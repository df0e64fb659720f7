"""Single elements of a vector by their places: taking them out, writing and adding them.

Whoever calls has seen to it that all places lie inside.
"""

from __future__ import annotations

import numpy as np

from caldera.kernels.native.codegen.emitter import F32, F64, I32, I64, Emitter, Pointer, Value
from caldera.kernels.native.compression.call import kernel, run

_KINDS = {4: F32, 8: F64}
_PIECE = 4096


def take_out(vector: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The elements at some places (int32), which are zero after that.

    >>> import numpy as np
    >>> from caldera.kernels.native.compression import take_out
    >>> x = np.array([1.0, 2.0, 3.0])
    >>> take_out(x, np.array([0, 2], np.int32)), x
    (array([1., 3.]), array([0., 2., 0.]))
    """
    values = np.empty(places.size, vector.dtype)
    address = kernel(_build, itemsize=vector.itemsize, mode="take")
    run(address, vector, 0, places, values, places.size)
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
    address = kernel(_build_put_only, itemsize=vector.itemsize)
    run(address, vector, vector.size, places, values, places.size)


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
    address = kernel(_build, itemsize=vector.itemsize, mode="add")
    run(address, vector, start, places, values, places.size)


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
    address = kernel(_build_not_zero, itemsize=vector.itemsize)
    run(address, vector, vector.size, begin, places, values, found)
    return places[: found[0]], values[: found[0]]


def _build_not_zero(k: Emitter, itemsize: int) -> None:
    """Slots: vector, size, begin, places, values, found."""
    vector, size, begin = k.pointer(0, _KINDS[itemsize]), k.integer(1), k.integer(2)
    places, values = k.pointer(3, I32), k.pointer(4, _KINDS[itemsize])
    found = k.variable(0, I64)
    with k.loop(0, size) as i:
        value = vector.load(i)
        places.store(found.value, k.convert(begin + i, I32))
        values.store(found.value, value)
        found.value = found.value + k.convert(value.differs(0.0), I64)
    k.pointer(5, I64).store(0, found.value)


def _build_put_only(k: Emitter, itemsize: int) -> None:
    """Slots: vector, size, places, values, count."""
    vector, size, count = k.pointer(0, _KINDS[itemsize]), k.integer(1), k.integer(4)
    places, values = k.pointer(2, I32), k.pointer(3, _KINDS[itemsize])
    done = k.variable(0, I64)
    # A piece at a time, which then is still in the nearest cache.
    with k.loop(0, size, _PIECE) as begin:
        end = k.minimum(begin + _PIECE, size)
        k.clear_bytes(vector.at(begin), (end - begin) * itemsize)
        until = _until(k, places, done.value, count, end)
        with k.loop(done.value, until) as i:
            vector.store(k.convert(places.load(i), I64), values.load(i))
        done.value = until


def _until(k: Emitter, places: Pointer, first: Value, count: Value, end: Value) -> Value:
    """The first of increasing places, from one on, that is not below `end`."""
    low, high = k.variable(first), k.variable(count)
    with k.repeat_while(lambda: low.value < high.value):
        middle = (low.value + high.value) // 2
        below = k.convert(places.load(middle), I64) < end
        low.value = k.select(below, middle + 1, low.value)
        high.value = k.select(below, high.value, middle)
    return low.value


def _build(k: Emitter, itemsize: int, mode: str) -> None:
    """Slots: vector, start, places, values, count."""
    vector, start, count = k.pointer(0, _KINDS[itemsize]), k.integer(1), k.integer(4)
    places, values = k.pointer(2, I32), k.pointer(3, _KINDS[itemsize])
    with k.loop(0, count) as i:
        place = k.convert(places.load(i), I64) - start
        if mode == "take":
            values.store(i, vector.load(place))
            vector.store(place, 0.0)
        else:
            vector.store(place, vector.load(place) + values.load(i))
