"""Two sparse vectors, each with its places in order, added up."""

from __future__ import annotations

import numpy as np

from caldera.kernels.native.codegen.emitter import F32, F64, I32, I64, Emitter
from caldera.kernels.native.compression.call import kernel, run

_KINDS = {4: F32, 8: F64}


def merge_sorted(
    a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Places (int32, increasing) and values of the sum of two vectors given the same way.

    >>> import numpy as np
    >>> from caldera.kernels.native.compression import merge_sorted
    >>> def sparse(places, values):
    ...     return np.array(places, np.int32), np.array(values, np.float32)
    >>> merge_sorted(sparse([1, 4], [1.0, 2.0]), sparse([0, 4], [5.0, 0.5]))
    (array([0, 1, 4], dtype=int32), array([5. , 1. , 2.5], dtype=float32))
    """
    room = a[0].size + b[0].size
    places, values = np.empty(room, np.int32), np.empty(room, a[1].dtype)
    found = np.zeros(1, np.int64)
    address = kernel(_build, itemsize=values.itemsize)
    run(address, *a, a[0].size, *b, b[0].size, places, values, found)
    return places[: found[0]], values[: found[0]]


def _build(k: Emitter, itemsize: int) -> None:
    """Slots: places, values and size of either, then places, values and size of the sum."""
    kind = _KINDS[itemsize]
    a_places, b_places, places = (k.pointer(slot, I32) for slot in (0, 3, 6))
    a_values, b_values, values = (k.pointer(slot, kind) for slot in (1, 4, 7))
    a_size, b_size = k.integer(2), k.integer(5)
    a, b, out = (k.variable(0, I64) for _ in range(3))
    with k.repeat_while(lambda: (a.value < a_size) & (b.value < b_size)):
        left, right = a_places.load(a.value), b_places.load(b.value)
        takes_left, takes_right = left <= right, right <= left
        x, y = a_values.load(a.value), b_values.load(b.value)
        # Not x + 0: the sum of one number is that number, whatever its sign.
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
        k.copy_bytes(values.at(out.value), from_values.at(at.value), rest * itemsize)
        out.value = out.value + rest
    k.pointer(8, I64).store(0, out.value)
