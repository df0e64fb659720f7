"""Movement ops that need no copy: the result is another way to look at the same memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from caldera.core.graph.memory_format import as_numbers, as_pairs, dense_strides, laid_out
from caldera.core.graph.node import Node, Spec
from caldera.core.tensor.shape import Shape

ViewFunction = Callable[[Any], Any]


def _arranged(node: Node) -> ViewFunction:
    """The input as it lies, where that is the order wanted already."""
    spec = node.spec
    wanted = dense_strides(spec.shape, spec.order, spec.dtype.itemsize)

    def view(x: Any) -> Any:
        pairs = zip(spec.shape, x.strides, wanted, strict=True)
        if spec.size and any(n > 1 and stride != other for n, stride, other in pairs):
            raise ValueError("the elements lie in another order")
        # The strides of axes of length 1 may be anything; kernels are given those of the order.
        flat = x.transpose(spec.order or range(spec.rank)).reshape(-1, copy=False)
        return laid_out(flat, spec.shape, spec.order)

    return view


def _reversed(axes: Any, rank: int) -> tuple[slice, ...]:
    turned = {axes} if isinstance(axes, int) else set(axes)
    return tuple(slice(None, None, -1 if axis in turned else None) for axis in range(rank))


def _broadcast(x: Any, shape: Shape) -> Any:
    """As NumPy's, also for an array on a card, whose elements nobody may look at."""
    missing = len(shape) - x.ndim
    strides = [0] * missing + [
        step if length == wanted else 0
        for step, length, wanted in zip(x.strides, x.shape, shape[missing:], strict=True)
    ]
    seen = as_strided(x.view(np.ndarray), shape, strides, writeable=False)
    return seen.view(type(x))


_VIEWS: dict[str, Callable[[Node], ViewFunction]] = {
    # copy=False makes NumPy refuse a reshape that would have to copy.
    "reshape": lambda node: lambda x: x.reshape(node.shape, copy=False),
    "transpose": lambda node: lambda x: x.transpose(node.attrs["axes"]),
    "slice": lambda node: lambda x: x[tuple(slice(*bound) for bound in node.attrs["bounds"])],
    "flip": lambda node: lambda x: x[_reversed(node.attrs["axis"], x.ndim)],
    "arrange": _arranged,
    "broadcast_to": lambda node: lambda x: _broadcast(x, node.shape),
    "view_as_real": lambda node: as_pairs,
    "view_as_complex": lambda node: as_numbers,
}


@lru_cache(maxsize=1 << 12)
def meta_array(spec: Spec) -> np.ndarray:
    """An array with the right shape, dtype and strides, and no memory of its own.

    Its elements must never be read; it answers questions about strides.
    """
    strides = dense_strides(spec.shape, spec.order, spec.dtype.itemsize)
    return as_strided(np.empty(1, spec.dtype), spec.shape, strides)


def view_of(node: Node, base: np.ndarray) -> tuple[ViewFunction, np.ndarray] | None:
    """How to see `node` in the memory of its input, whose strides are those of `base`."""
    make = _VIEWS.get(node.op.name)
    if make is None:
        return None
    function = make(node)
    try:
        return function, function(base)
    except ValueError:
        return None


def is_all_of(seen: np.ndarray, base: Spec, spec: Spec) -> bool:
    """Whether a view has all bytes of its base, in the order of a spec."""
    wanted = dense_strides(spec.shape, spec.order, spec.dtype.itemsize)
    pairs = zip(spec.shape, seen.strides, wanted, strict=True)
    return base.nbytes == spec.nbytes and all(n == 1 or step == other for n, step, other in pairs)
