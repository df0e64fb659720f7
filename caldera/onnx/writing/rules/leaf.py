"""What a graph reads: numbers, arrays, variables, ranges, outputs of other nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.onnx.writing.dynamic_batch import Samples, size
from caldera.onnx.writing.rules.registry import writes


@writes("constant")
def _constant(write: Any, pair: Any) -> str:
    value, other = pair.node.attrs["value"], pair.twin.attrs["value"]
    dtype = pair.spec.dtype
    if value == other or value != value:
        return write.scalar(value, dtype)
    # A number of elements, say: it follows from the number of samples.
    times = size(int(value), int(other), pair.node)
    assert isinstance(times, Samples)
    count = write.add("Squeeze", write.samples(times.times))
    return write.add("Cast", count, to=write.element_type(dtype))


@writes("array")
def _array(write: Any, pair: Any) -> str:
    return write.array(np.array(pair.attrs["symbol"].value.numpy()))


@writes("variable", "tensor")
def _held(write: Any, pair: Any) -> str:
    symbol = pair.attrs["symbol"]
    return write.held(np.array(symbol.value.numpy()), symbol.name or "tensor")


@writes("iota")
def _iota(write: Any, pair: Any) -> str:
    shape, axis = pair.shape, pair.attrs["axis"]
    dtype = pair.spec.dtype
    line = [1] * len(shape)
    if isinstance(shape[axis], Samples):
        end = write.add("Squeeze", write.samples(shape[axis].times))
        zero, one = write.scalar(0, np.dtype(np.int64)), write.scalar(1, np.dtype(np.int64))
        numbers = write.add("Range", zero, end, one)
        numbers = write.add("Cast", numbers, to=write.element_type(dtype))
        line[axis] = -1
        numbers = write.add("Reshape", numbers, write.integers(line))
    else:
        line[axis] = shape[axis]
        numbers = write.array(np.arange(shape[axis], dtype=dtype).reshape(line))
    return write.add("Expand", numbers, write.shape(shape))


@writes("item")
def _item(write: Any, pair: Any) -> str:
    names = write.find(pair.inputs[0])
    return names[pair.attrs["index"]]


@writes("cast")
def _cast(write: Any, pair: Any) -> str:
    source = write.name(pair.inputs[0])
    return write.add("Cast", source, to=write.element_type(pair.spec.dtype))
