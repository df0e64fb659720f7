"""Every way in which the CPU's kernels can reduce an array, each ready to be run and timed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import OPS, parameter
from caldera.core.tensor.dtype import BY_NAME
from caldera.core.tensor.shape import Shape
from caldera.kernels.table import TABLE, Call
from caldera.kernels.tuning.choice_store import ORACLE
from caldera.kernels.tuning.choose import choices
from caldera.kernels.tuning.measure import some_numbers


def reduction_node(shape: Shape, axis: tuple[int, ...], dtype: str, op: str = "sum") -> Node:
    """The reduction of an array of this shape over these axes."""
    return OPS[op](parameter(0, Spec(shape, BY_NAME[dtype])), axis=axis, keepdims=False)


def reduction_runners(
    shape: Shape, axis: tuple[int, ...], dtype: str = "float32", op: str = "sum"
) -> dict[str, Callable[[], object]]:
    """Each candidate by its name, on one array, and NumPy's function for the same.

    >>> runners = reduction_runners((256, 256), (1,))
    >>> "native" in runners and "product with ones" in runners
    True
    """
    node = reduction_node(shape, axis, dtype, op)
    x = some_numbers(shape, node.dtype, np.random.default_rng(0))
    found: dict[str, Callable[[], object]] = {}
    for kernel in TABLE.candidates(node, "cpu"):
        if kernel.name != ORACLE:
            out = np.empty(node.shape, node.dtype)
            workspace = np.empty(kernel.workspace(node), np.uint8)
            found[kernel.name] = kernel.bind(Call(node, (out,), (x,), workspace))
    function = getattr(np, op)
    found["np." + op] = lambda: function(x, axis=axis)
    return found


def chosen_reduction(
    shape: Shape, axis: tuple[int, ...], dtype: str = "float32", op: str = "sum"
) -> str:
    """The name of the kernel that serves plans: measured, unless the array is very small."""
    return choices.kernel(reduction_node(shape, axis, dtype, op), "cpu").name
