"""What a graph reads: numbers, arrays, variables, ranges, outputs of other nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.onnx.writing.arrays import array_by_samples, counting
from caldera.onnx.writing.rules.registry import writes


@writes("constant", by_samples=("value",))
def _constant(write: Any, pair: Any) -> str:
    first, second = (
        np.array(each.attrs["value"], pair.spec.dtype) for each in (pair.node, pair.twin)
    )
    return array_by_samples(write, (first, second), pair.node)


def _arrays(pair: Any) -> tuple[np.ndarray, np.ndarray]:
    first, second = (
        np.array(each.attrs["symbol"].value.numpy()) for each in (pair.node, pair.twin)
    )
    return first, second


@writes("array", by_samples=("symbol",))
def _array(write: Any, pair: Any) -> str:
    return array_by_samples(write, _arrays(pair), pair.node)


@writes("variable", "tensor", by_samples=("symbol",))
def _held(write: Any, pair: Any) -> str:
    symbol = pair.attrs["symbol"]
    if symbol is not pair.twin.attrs["symbol"]:
        # Made while the model was written down, and so each time anew.
        return array_by_samples(write, _arrays(pair), pair.node)
    return write.held(np.array(symbol.value.numpy()), symbol.name or "tensor")


@writes("iota", by_samples=("shape",))
def _iota(write: Any, pair: Any) -> str:
    shape, axis = pair.shape, pair.attrs["axis"]
    numbers = counting(write, shape[axis], axis, len(shape), pair.spec.dtype)
    return write.add("Expand", numbers, write.shape(shape))


@writes("item")
def _item(write: Any, pair: Any) -> str:
    names = write.find(pair.inputs[0])
    return names[pair.attrs["index"]]


@writes("cast")
def _cast(write: Any, pair: Any) -> str:
    source = write.name(pair.inputs[0])
    return write.add("Cast", source, to=write.element_type(pair.spec.dtype))
