"""Axes along which several arrays are walked together, merged where they lie end to end.

What kernels are given of an array's strides: a structure that goes with the launch, so one compiled
kernel serves every shape and every view. `include/strided_index.cuh` has the other side.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

from caldera.errors import DeviceError
from caldera.kernels.cuda.codegen.signature import Array, Parameter, u32, u64

MOST_AXES = 8
"""Axes that can be left once they are merged."""
MOST_BLOCKS_EACH = 16
"""Blocks for each multiprocessor from which on threads take several elements instead."""


@dataclass(frozen=True)
class Axis:
    """A length, and how far apart neighbours along it are in each array, in elements."""

    length: int
    strides: tuple[int, ...]


def element_strides(array: Array) -> tuple[int, ...]:
    """How far apart neighbours are along each axis.

    >>> import numpy as np
    >>> element_strides(np.zeros((2, 3))[:, ::-1])
    (3, -1)
    """
    return tuple(stride // array.itemsize for stride in array.strides)


def axes_of(shape: Sequence[int], *strides: Sequence[int]) -> list[Axis]:
    """Axes of these lengths; one row of strides for each array.

    >>> axes_of((2, 3), (3, 1), (0, 1))
    [Axis(length=2, strides=(3, 0)), Axis(length=3, strides=(1, 1))]
    """
    return [Axis(n, each) for n, each in zip(shape, zip(*strides, strict=True), strict=True)]


def merged(axes: Iterable[Axis]) -> list[Axis]:
    """The same elements in the same order along as few axes as possible.

    >>> merged(axes_of((2, 3, 4), (12, 4, 1), (12, 4, 1)))
    [Axis(length=24, strides=(1, 1))]
    """
    result: list[Axis] = []
    for axis in axes:
        if axis.length == 1:
            continue
        if result and result[-1].strides == tuple(axis.length * each for each in axis.strides):
            result[-1] = Axis(result[-1].length * axis.length, axis.strides)
        else:
            result.append(axis)
    return result


def elements(axes: Iterable[Axis]) -> int:
    """How many elements there are along these axes."""
    return prod(axis.length for axis in axes)


@cache
def _structure(arrays: int) -> type[ctypes.Structure]:
    fields = [
        ("length", ctypes.c_longlong * MOST_AXES),
        ("stride", ctypes.c_longlong * MOST_AXES * arrays),
        ("rank", ctypes.c_int),
    ]
    return type(f"StridedAxes{arrays}", (ctypes.Structure,), {"_fields_": fields})


def strided_axes(axes: Sequence[Axis], arrays: int) -> Parameter:
    """The parameter of a kernel that walks `arrays` arrays along these axes."""
    if len(axes) > MOST_AXES:
        raise DeviceError.build(
            "kernel of a card",
            expected=f"at most {MOST_AXES} axes that cannot be merged",
            got=f"{len(axes)}",
            hint="make the array contiguous, or run this on another device",
        )
    result: Any = _structure(arrays)()
    result.rank = len(axes)
    for i, axis in enumerate(axes):
        result.length[i] = axis.length
        for array, stride in enumerate(axis.strides):
            result.stride[array][i] = stride
    return Parameter(f"StridedAxes<{arrays}>", result)


def blocks_for(count: int, threads: int, multiprocessors: int) -> int:
    """Blocks for a loop over `count` in which every thread may take several turns."""
    return max(1, min(-(-count // threads), multiprocessors * MOST_BLOCKS_EACH))


def counter_type(*counts: int) -> str:
    """The type that counts this far; divisions of the narrow one are several times faster."""
    return "u32" if max(counts, default=0) < 2**31 else "u64"


def counted(kind: str, value: int) -> Parameter:
    """A parameter of an `counter_type`."""
    return u32(value) if kind == "u32" else u64(value)
