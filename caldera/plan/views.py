"""Movement ops that need no copy: the result is another way to look at the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from caldera.graph.node import Node, Spec

Look = Callable[[Any], Any]

_LOOKS: dict[str, Callable[[Node], Look]] = {
    # copy=False makes NumPy refuse a reshape that would have to copy.
    "reshape": lambda node: lambda x: x.reshape(node.shape, copy=False),
    "transpose": lambda node: lambda x: x.transpose(node.attrs["axes"]),
    "slice": lambda node: lambda x: x[tuple(slice(*bound) for bound in node.attrs["bounds"])],
    "flip": lambda node: lambda x: np.flip(x, node.attrs["axis"]),
    "broadcast_to": lambda node: lambda x: np.broadcast_to(x, node.shape),
}


def ghost(spec: Spec) -> np.ndarray:
    """An array with the right shape, dtype and strides, and no memory of its own.

    Its elements must never be read; it answers questions about strides.
    """
    strides: list[int] = []
    step = spec.dtype.itemsize
    for n in reversed(spec.shape):
        strides.insert(0, step)
        step *= max(n, 1)
    return np.lib.stride_tricks.as_strided(np.empty(1, spec.dtype), spec.shape, strides)


def look(node: Node, base: np.ndarray) -> tuple[Look, np.ndarray] | None:
    """How to see `node` in the memory of its input, whose strides are those of `base`."""
    make = _LOOKS.get(node.op.name)
    if make is None:
        return None
    function = make(node)
    try:
        return function, function(base)
    except ValueError:
        return None
