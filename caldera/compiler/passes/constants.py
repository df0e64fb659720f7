"""Values known before a run: numbers, and arrays that never change."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Hashable

import numpy as np

from caldera.core.graph.node import Node, Spec, Symbol
from caldera.core.graph.ops import full, greater
from caldera.core.graph.ops.base import array as array_leaf
from caldera.core.tensor import DType, Tensor, bool_, is_float
from caldera.kernels.reference import evaluate

Number = bool | int | float

LARGEST_ARRAY = 1 << 16
"""Elements: larger arrays are neither computed ahead nor compared with each other."""

VIEWS = frozenset({"broadcast_to", "reshape", "transpose", "slice", "flip"})
"""Ops whose result is a view of the input's elements."""

_known: weakref.WeakValueDictionary[Hashable, Node] = weakref.WeakValueDictionary()


def source_of(node: Node, views: Collection[str] = ("broadcast_to",)) -> Node:
    """Return the source of a chain of views."""
    while node.op.name in views:
        node = node.inputs[0]
    return node


def uniform(node: Node) -> Number | None:
    """Return the number that `node` holds in every element, if it is such a constant."""
    node = source_of(node)
    return node.attrs["value"] if node.op.name == "constant" else None


def is_positive_test(node: Node, value: Node) -> bool:
    """Return True if `node` is the comparison value > 0."""
    return node.op is greater and node.inputs[0] is value and uniform(node.inputs[1]) == 0


def is_sum_over(node: Node, axes: tuple[int, ...]) -> bool:
    """Return True if a node is the sum over these axes, without the axes."""
    return node.op.name == "sum" and node.attrs["axis"] == axes and not node.attrs["keepdims"]


def is_known(node: Node) -> bool:
    """Return True for constants, ranges and constant arrays, and their views."""
    node = source_of(node, VIEWS)
    if node.op.name == "constant":
        return True
    return node.op.name in ("array", "iota") and node.spec.size <= LARGEST_ARRAY


def value_of(node: Node) -> np.ndarray:
    """Return the array behind a node that `is_known`."""
    if node.op.name == "array":
        tensor: Tensor = node.attrs["symbol"].value
        return tensor.numpy()
    return evaluate(node, [value_of(given) for given in node.inputs])[0]


def known_node(value: np.ndarray) -> Node:
    """A node that holds `value`: a (broadcast) constant if all elements have the same bits."""
    array = np.ascontiguousarray(value)
    bits = array.tobytes()
    first = bits[: array.itemsize]
    if array.size and bits == first * array.size:
        return full(value.shape, plain(array.reshape(-1)[0], array.dtype), array.dtype)
    return array_node(value, bits) if array.size else full(value.shape, 0, array.dtype)


def array_node(value: np.ndarray, bits: bytes | None = None) -> Node:
    """Return the constant array with these bits: the same node whenever they are the same."""
    key = (value.shape, value.dtype.name, value.tobytes() if bits is None else bits)
    node = _known.get(key)
    if node is None:
        # On the host, as what `lazy` makes of arrays: plans of other devices copy it.
        dense = np.ascontiguousarray(value).reshape(value.shape)
        held = Tensor.from_numpy(dense, device="cpu")
        node = array_leaf(symbol=Symbol("", Spec(held.shape, held.dtype), "array", held))
        _known[key] = node
    return node


def plain(value: object, dtype: DType) -> Number:
    """Return an element of an array as a Python number."""
    if is_float(dtype):
        return float(value)  # type: ignore[arg-type]
    return bool(value) if dtype == bool_ else int(value)  # type: ignore[call-overload]
