"""Reading and adding at positions, sorting."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.core.tensor.dtype import int32, int64, uint64
from caldera.onnx.writing.rules.registry import inputs, writes


def _as_index(write: Any, pair: Any) -> str:
    """Positions: ONNX takes int32 and int64 only."""
    name = write.name(pair)
    if pair.spec.dtype in (int32, int64):
        return name
    if pair.spec.dtype == uint64:
        # What int64 has not must not be counted from the end.
        name = write.add("Min", name, write.scalar(np.iinfo(np.int64).max, uint64))
    return write.add("Cast", name, to=write.element_type(int64))


@writes("gather")
def _gather(write: Any, pair: Any) -> str:
    x, indices = pair.inputs
    return write.add("Gather", write.name(x), _as_index(write, indices), axis=pair.attrs["axis"])


@writes("take_along_axis")
def _take_along_axis(write: Any, pair: Any) -> str:
    x, indices = pair.inputs
    axis = pair.attrs["axis"]
    return write.add("GatherElements", write.name(x), _as_index(write, indices), axis=axis)


@writes("put_along_axis_add")
def _put_along_axis_add(write: Any, pair: Any) -> str:
    x, indices, updates = pair.inputs
    names = write.name(x), _as_index(write, indices), write.name(updates)
    return write.add("ScatterElements", *names, axis=pair.attrs["axis"], reduction="add")


@writes("scatter_add")
def _scatter_add(write: Any, pair: Any) -> str:
    x, indices, updates = pair.inputs
    axis, rank, more = pair.attrs["axis"], len(x.spec.shape), len(indices.spec.shape)
    places = write.add("Unsqueeze", _as_index(write, indices), write.integers([-1]))
    if axis == 0:
        names = write.name(x), places, write.name(updates)
        return write.add("ScatterND", *names, reduction="add")
    # ONNX adds rows: the axis comes first, and goes back.
    order = [axis, *range(axis), *range(axis + 1, rank)]
    rows = [*range(axis, axis + more), *range(axis), *range(axis + more, rank + more - 1)]
    turned = write.add("Transpose", write.name(x), perm=order)
    added = write.add("Transpose", write.name(updates), perm=rows)
    result = write.add("ScatterND", turned, places, added, reduction="add")
    back = [order.index(each) for each in range(rank)]
    return write.add("Transpose", result, perm=back)


@writes("sort")
def _sort(write: Any, pair: Any) -> tuple[str, ...]:
    (x,) = inputs(write, pair)
    axis = pair.attrs["axis"]
    length = write.add("Shape", x, start=axis, end=axis + 1)
    largest = int(pair.attrs["descending"])
    names = write.add("TopK", x, length, outputs=2, axis=axis, largest=largest, sorted=1)
    return tuple(names)


@writes("determinant")
def _determinant(write: Any, pair: Any) -> str:
    return write.add("Det", *inputs(write, pair))
