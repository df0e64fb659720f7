"""Running sums and products, and differences of neighbours."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from caldera import op
from caldera.dmath.numpy_functions.dispatch import Function, handles, register
from caldera.dmath.numpy_functions.reductions import filled


def _running(function: Function, start: int, nan: bool = False) -> Function:
    def run(a: Any, axis: Any = None, dtype: Any = None) -> Any:
        a = filled(a, start) if nan else a
        flat = axis is None or not a.ndim
        return function(op.reshape(a, (a.size,)) if flat else a, 0 if flat else index(axis))

    return run


register(
    {
        np.cumsum: _running(op.cumsum, 0),
        np.cumprod: _running(op.cumprod, 1),
        np.nancumsum: _running(op.cumsum, 0, nan=True),
        np.nancumprod: _running(op.cumprod, 1, nan=True),
    }
)


def _cumulative(function: Function, start: int) -> Function:
    def run(x: Any, axis: Any = None, dtype: Any = None, include_initial: Any = False) -> Any:
        x, where = x if x.ndim else op.reshape(x, (1,)), 0 if axis is None else index(axis)
        made = function(x, where)
        if not include_initial:
            return made
        shape = list(made.shape)
        shape[where] = 1
        return op.concat([op.full(shape, start, made.dtype), made], where)

    return run


if hasattr(np, "cumulative_sum"):
    register(
        {
            np.cumulative_sum: _cumulative(op.cumsum, 0),
            np.cumulative_prod: _cumulative(op.cumprod, 1),
        }
    )


@handles(np.diff)
def _(a: Any, n: Any = 1, axis: Any = -1, prepend: Any = None, append: Any = None) -> Any:
    if n == 0:
        return a
    where = index(axis) % a.ndim
    ends = []
    for end in (prepend, append):
        shape = list(a.shape)
        shape[where] = 1
        single = end is not None and not np.ndim(end)
        ends.append(None if end is None else op.broadcast(end, shape) if single else end)
    parts = [each for each in (ends[0], a, ends[1]) if each is not None]
    a = op.concat(parts, where) if len(parts) > 1 else a
    differ = op.not_equal if a.dtype.kind == "b" else op.sub
    for _ in range(min(int(n), a.shape[where])):
        rest = a.shape[where] - 1
        a = differ(op.split(a, (1, rest), where)[-1], op.split(a, (rest, 1), where)[0])
    return a
