"""Array access of native kernels: collapsed strides, part counts, copies, registration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from caldera.base.threads import is_limited, thread_count
from caldera.core.graph import Node, Order, dense_strides, laid_out
from caldera.kernels.reference.evaluation import evaluate
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

Axes = tuple[int, ...]
Strides = tuple[int, ...]
Bind = Callable[[Call], Runner | None]
"""A kernel's `bind` that returns None for arrays in an unsupported layout."""

CHEAP = 1 << 14
"""Elements from which on a second thread saves more than it costs, in loops of a few operations."""
COSTLY = 1 << 12
"""Number of elements as for `CHEAP`, for loops with an exponential, a logarithm or a power."""
SHARE = 1 << 15
"""Minimum number of elements in a share, where a loop has several shares per worker."""
MOST_SHARES = 4
"""Times that it does, at most."""


def offer(
    ops: str | Iterable[str], name: str, bind: Callable[[Call], Runner], *rest: Any, **more: Any
) -> None:
    """Register a CPU kernel for an op, or for several; what follows `bind` is as in `Kernel`."""
    for op in (ops,) if isinstance(ops, str) else ops:
        TABLE.add(Kernel(op, "cpu", name, bind, *rest, **more))


def parts_for(elements: int, *, costly: bool = False) -> int:
    """Return the number of workers that should share a loop over `elements` elements."""
    return thread_count() if elements >= (COSTLY if costly else CHEAP) else 1


def shares_for(elements: int) -> int:
    """Return the number of shares into which a loop over `elements` elements is split.

    Large loops have several shares per worker, so that workers that finish early can take over
    shares of slower ones.
    """
    parts = parts_for(elements)
    if parts == 1 or is_limited():
        return parts
    return parts * min(MOST_SHARES, max(1, elements // (parts * SHARE)))


def collapse_axes(arrays: Sequence[Array], groups: Sequence[Axes]) -> list[Strides] | None:
    """Return the strides (in elements) of each array with every group of axes seen as one axis.

    The axes of a group are taken in the order of their strides in the first array. The result is
    None if a group of an array is not evenly spaced in this order.

    >>> import numpy as np
    >>> from caldera.kernels.native.codegen.strides import collapse_axes
    >>> images = np.zeros((2, 5, 5, 3), np.float32).transpose(0, 3, 1, 2)
    >>> collapse_axes([images], [(0, 2, 3), (1,)])
    [(3, 1)]
    >>> collapse_axes([images, np.zeros((2, 3, 5, 5), np.float32)], [(0, 2, 3), (1,)]) is None
    True
    """
    first = arrays[0]
    kept = [
        sorted((a for a in axes if first.shape[a] > 1), key=lambda a: -abs(first.strides[a]))
        for axes in groups
    ]
    found: list[Strides] = []
    for array in arrays:
        strides = []
        for axes in kept:
            for outer, inner in pairwise(axes):
                if array.strides[outer] != array.strides[inner] * array.shape[inner]:
                    return None
            strides.append(array.strides[axes[-1]] // array.itemsize if axes else 0)
        found.append(tuple(strides))
    return found


def stride_of(array: Array) -> int:
    """Return the number of elements between neighbours of a vector (0 for a single element)."""
    return 0 if array.size <= 1 else int(array.strides[0] // array.itemsize)


def any_layout(
    bind: Bind, order_for: Callable[[Node], Order | None] = lambda node: None
) -> Callable[[Call], Runner]:
    """Extend `bind` to arrays in any layout, using dense copies of unsupported ones.

    `order_for` defines the layout of copies of the largest operands if not row major. Empty arrays
    are left to the oracle.
    """

    def bind_any(call: Call) -> Runner:
        if any(array.size == 0 for array in call.inputs):
            return lambda: _by_reference(call.node, call.inputs, call.outputs)
        runner = bind(call)
        if runner is not None:
            return runner
        order = order_for(call.node)
        inputs, outputs = _dense(call.inputs, order), _dense(call.outputs, order)
        compute = bind(replace(call, inputs=inputs, outputs=outputs))
        assert compute is not None

        def run() -> None:
            for own, given in zip(inputs, call.inputs, strict=True):
                if own is not given:
                    np.copyto(own, given)
            compute()
            for wanted, own in zip(call.outputs, outputs, strict=True):
                if own is not wanted:
                    np.copyto(wanted, own)

        return run

    return bind_any


def _dense(arrays: Sequence[Array], order: Order | None) -> tuple[Array, ...]:
    result = []
    for array in arrays:
        wanted = order if order is not None and array.ndim == len(order) else None
        if array.strides != dense_strides(array.shape, wanted, array.itemsize):
            array = laid_out(np.empty(array.size, array.dtype), array.shape, wanted)
        result.append(array)
    return tuple(result)


def _by_reference(node: Node, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    for output, value in zip(outputs, evaluate(node, inputs), strict=True):
        np.copyto(output, value)
