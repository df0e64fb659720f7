"""Arrays that follow from the number of samples.

A model may make arrays while it is written down: zeros for the first state of each sample, the
positions 0 to n - 1, a number of elements. For two numbers of samples there are then two arrays.
What lies behind them is found again where it is one of a few plain things, and the file
computes it:

- an axis as long as the samples, along which nothing changes, or everything by equal steps;
- numbers that grow with the number of samples (a + b n), or that it divides (a / n).

Anything else is an error; a file that holds the first array would be wrong for all other batches.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.core.graph.node import Node
from caldera.core.tensor.dtype import DType, int64
from caldera.onnx.writing.dynamic_batch import FIRST, SECOND, Samples, Size, not_open, sizes

Both = tuple[np.ndarray, np.ndarray]


def array_by_samples(write: Any, both: Both, node: Node) -> str:
    """An array that is the first for one number of samples and the second for the other."""
    first, second = both
    if _same(first, second):
        return write.array(first)
    shape = sizes(first.shape, second.shape, node)
    steps = []
    for axis, each in enumerate(shape):
        if isinstance(each, Samples):
            both, step = _start_and_step(both, axis, node)
            steps.append((axis, each, step))
    name = _numbers(write, both, node)
    for axis, length, step in steps:
        if not step[0].any() and not step[1].any():
            continue
        positions = counting(write, length, axis, len(shape), first.dtype)
        name = write.add("Add", name, write.add("Mul", positions, _numbers(write, step, node)))
    return write.add("Expand", name, write.shape(shape)) if steps else name


def counting(write: Any, length: Size, axis: int, rank: int, dtype: DType) -> str:
    """0, 1, 2, ... along one of `rank` axes; the others have size 1."""
    line = [1] * rank
    if not isinstance(length, Samples):
        line[axis] = length
        return write.array(np.arange(length, dtype=dtype).reshape(line))
    line[axis] = -1
    zero, one = write.scalar(0, int64), write.scalar(1, int64)
    numbers = write.add("Range", zero, write.add("Squeeze", write.samples(length.times)), one)
    numbers = write.add("Cast", numbers, to=write.element_type(dtype))
    return write.add("Reshape", numbers, write.integers(line))


def _same(first: np.ndarray, second: np.ndarray) -> bool:
    return first.shape == second.shape and np.array_equal(
        first, second, equal_nan=first.dtype.kind == "f"
    )


def _start_and_step(both: Both, axis: int, node: Node) -> tuple[Both, Both]:
    """What is at the start of an axis, and by how much it changes from each index to the next."""
    starts, steps = [], []
    for array in both:
        start = array.take([0], axis)
        step = np.zeros_like(start)
        if not _same(array, np.broadcast_to(start, array.shape)):
            line = [1] * array.ndim
            line[axis] = -1
            positions = np.arange(array.shape[axis]).astype(array.dtype).reshape(line)
            # Truth values have no steps, and those of fractions are rounded.
            if array.dtype.kind in "iu":
                step = array.take([1], axis) - start
            if not _same(array, start + positions * step):
                raise _unknown(both, node)
        starts.append(start)
        steps.append(step)
    return (starts[0], starts[1]), (steps[0], steps[1])


def _numbers(write: Any, both: Both, node: Node) -> str:
    """Numbers of which each is a function of the number of samples."""
    first, second = both
    if _same(first, second):
        return write.array(first)
    dtype = first.dtype
    if dtype.kind in "b":
        raise _unknown(both, node)
    count = write.add("Cast", write.add("Squeeze", write.samples(1)), to=write.element_type(dtype))
    a, b = (each.astype(np.float64 if dtype.kind not in "iu" else np.int64) for each in both)
    slope = (b - a) // (SECOND - FIRST)
    offset = a - slope * FIRST
    if np.array_equal(offset + slope * SECOND, b):
        grown = write.add("Mul", count, write.array(slope.astype(dtype)))
        return write.add("Add", grown, write.array(offset.astype(dtype)))
    if dtype.kind not in "iu" and np.allclose(a * FIRST, b * SECOND, rtol=1e-6, atol=0):
        return write.add("Div", write.array((a * FIRST).astype(dtype)), count)
    raise _unknown(both, node)


def _unknown(both: Both, node: Node) -> Exception:
    return not_open(
        "arrays that are plain functions of the number of samples",
        _briefly(both[0]),
        _briefly(both[1]),
        node,
    )


def _briefly(array: np.ndarray) -> str:
    flat = ", ".join(str(each) for each in array.reshape(-1)[:4])
    return f"{array.shape} {array.dtype} [{flat}{', ...' if array.size > 4 else ''}]"
