"""How native kernels meet arrays: strides of collapsed axes, part counts, copies, registration."""

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
"""A kernel's `bind` that may give None: the arrays lie in a way it does not know."""

CHEAP = 1 << 14
"""Elements from which on a second thread saves more than it costs, in loops of a few operations."""
COSTLY = 1 << 12
"""The same for loops with an exponential, a logarithm or a power in them."""
SHARE = 1 << 15
"""Elements that a worker takes at once, at least, if it takes them bit by bit."""
MOST_SHARES = 4
"""Times that it does, at most."""


def offer(
    ops: str | Iterable[str], name: str, bind: Callable[[Call], Runner], *rest: Any, **more: Any
) -> None:
    """Register a CPU kernel for an op, or for several; what follows `bind` is as in `Kernel`."""
    for op in (ops,) if isinstance(ops, str) else ops:
        TABLE.add(Kernel(op, "cpu", name, bind, *rest, **more))


def parts_for(elements: int, *, costly: bool = False) -> int:
    """How many workers should share a loop over so many elements."""
    return thread_count() if elements >= (COSTLY if costly else CHEAP) else 1


def shares_for(elements: int) -> int:
    """In how many parts a loop over so many elements is done: several for a worker where they are
    many, so that workers that are done sooner take some of the others'."""
    parts = parts_for(elements)
    if parts == 1 or is_limited():
        return parts
    return parts * min(MOST_SHARES, max(1, elements // (parts * SHARE)))


def collapse_axes(arrays: Sequence[Array], groups: Sequence[Axes]) -> list[Strides] | None:
    """The strides (in elements) of each array when every group of axes is seen as one axis.

    The axes of a group are taken in the order in which they lie in the first array; None if a
    group of one of the arrays is not evenly spaced in this order.

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
    """The elements from one number of a vector to the next (0 where there is only one)."""
    return 0 if array.size <= 1 else int(array.strides[0] // array.itemsize)


def any_layout(
    bind: Bind, order_for: Callable[[Node], Order | None] = lambda node: None
) -> Callable[[Call], Runner]:
    """`bind` for arrays in any layout: through dense copies where it does not know theirs.

    `order_for` says how copies of the largest operands lie if not row major. Empty arrays are left
    to the oracle.
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
