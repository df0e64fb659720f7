"""Element-wise ops that write straight into their output, by NumPy's ufuncs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from caldera.graph.node import Node
from caldera.graph.opdef import OPS
from caldera.kernels.reference import evaluate
from caldera.kernels.reference.elementwise import UFUNCS
from caldera.kernels.table import TABLE, Call, Kernel, Runner
from caldera.tensor.dtype import HALVES, bool_

Into = Callable[..., Any]
"""Called as `into(*inputs, output)`."""


# NumPy wants the output of these two by keyword.
def _maximum(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    np.maximum(a, b, out=out)


def _minimum(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    np.minimum(a, b, out=out)


def _relu(x: np.ndarray, out: np.ndarray) -> None:
    np.maximum(x, 0, out=out)


def _rsqrt(x: np.ndarray, out: np.ndarray) -> None:
    np.sqrt(x, out)
    np.reciprocal(out, out)


def _cast(x: np.ndarray, out: np.ndarray) -> None:
    np.copyto(out, x, casting="unsafe")


def _oracle(node: Node, *arrays: np.ndarray) -> None:
    *inputs, out = arrays
    np.copyto(out, evaluate(node, inputs)[0])


def into(node: Node) -> Into:
    """A function that computes the node into a given array (which may be one of its inputs)."""
    dtypes = {given.dtype for given in node.inputs} | {node.dtype}
    if node.op.name == "cast" and node.dtype != bool_:
        return _cast
    if not dtypes & HALVES:
        function = _INTO.get(node.op.name)
        if function is not None:
            return function
    return partial(_oracle, node)


_INTO: dict[str, Into] = {
    **UFUNCS,
    "maximum": _maximum,
    "minimum": _minimum,
    "relu": _relu,
    "rsqrt": _rsqrt,
}


def _bind(call: Call) -> Runner:
    return partial(into(call.node), *call.inputs, *call.outputs)


for _op in OPS.values():
    if _op.kind == "elementwise" and _op.decompose is None:
        TABLE.add(Kernel(_op.name, "cpu", "ufunc", _bind, in_place=lambda node: True))
