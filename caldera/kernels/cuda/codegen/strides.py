"""Strided arrays in CUDA kernels: merged axes, vector access, and threads for each row.

Axes along which several arrays are traversed together are merged if they are contiguous. The
strides are passed in a structure with the launch, so one compiled kernel serves every shape and
every view; `include/strided_index.cuh` is its counterpart. The primitives of a row are in
include/row_primitives.cuh.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

from caldera.core.graph.memory_format import dense_strides
from caldera.core.memory.software import address_of
from caldera.core.tensor.shape import Shape
from caldera.errors import DeviceError
from caldera.kernels.cuda.codegen.kernel import Array, Parameter, index_type, indices
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.table import Array as DeviceArray

Strides = tuple[int, ...]
"""Strides in elements, one for each axis of a shape."""
_WIDEST = 16
"""Maximum number of bytes that a thread loads or stores in one access."""
_FEW = 1 << 30
"""Elements that 32-bit numbers count with room to spare for the last step of a loop."""


def strides_of(array: DeviceArray) -> Strides:
    """Return the strides in elements along each axis; 0 along axes of length 1."""
    pairs = zip(array.shape, array.strides, strict=True)
    return tuple(step // array.itemsize if n > 1 else 0 for n, step in pairs)


def lies_dense(array: DeviceArray, order: tuple[int, ...] | None) -> bool:
    """Return True if the elements have no gaps, with the axes in this order."""
    strides = dense_strides(array.shape, order, array.itemsize)
    return all(
        n == 1 or step == wanted
        for n, step, wanted in zip(array.shape, array.strides, strides, strict=True)
    )


@dataclass(frozen=True)
class StridedLayout:
    """Some axes of a shape seen as few: their lengths, the slowest first, and for each of several
    arrays the strides along them."""

    sizes: tuple[int, ...]
    strides: tuple[Strides, ...]

    @property
    def rank(self) -> int:
        """Number of remaining axes, at least 1."""
        return len(self.sizes)

    def parameter(self, large: bool) -> Parameter:
        """Return a parameter with the contents of the StridedLayout of row_primitives.cuh."""
        numbers = [*self.sizes, *(step for each in self.strides for step in each)]
        kind = f"StridedLayout<{self.rank}, {len(self.strides)}, {index_type(large)}>"
        return indices(kind, numbers, large)

    @property
    def inner(self) -> tuple[int, ...]:
        """The strides of the axis that turns fastest, one for each array."""
        return tuple(each[-1] for each in self.strides)


def strided_layout(shape: Shape, axes: Iterable[int], strides: Sequence[Strides]) -> StridedLayout:
    """Return the layout of these axes, in their memory order in the first array.

    Axes are joined where the strides of all arrays permit it.

    >>> strided_layout((2, 3, 4), (0, 1, 2), [(12, 4, 1), (12, 4, 1)])
    StridedLayout(sizes=(24,), strides=((1,), (1,)))
    >>> strided_layout((2, 3, 4), (0, 2), [(12, 4, 1), (0, 0, 1)])
    StridedLayout(sizes=(2, 4), strides=((12, 1), (0, 1)))
    """
    kept = [axis for axis in axes if shape[axis] != 1]
    if any(shape[axis] == 0 for axis in kept):
        return StridedLayout((0,), ((0,),) * len(strides))
    kept.sort(key=lambda axis: [-abs(each[axis]) for each in strides])
    sizes: list[int] = []
    joined: list[list[int]] = [[] for _ in strides]
    for axis in kept:
        steady = sizes and all(
            own[-1] == each[axis] * shape[axis] for own, each in zip(joined, strides, strict=True)
        )
        if steady:
            sizes[-1] *= shape[axis]
        else:
            sizes.append(shape[axis])
        for own, each in zip(joined, strides, strict=True):
            own[-1 if steady else len(own) :] = [each[axis]]
    if not sizes:
        return StridedLayout((1,), ((0,),) * len(strides))
    return StridedLayout(tuple(sizes), tuple(tuple(own) for own in joined))


def next_power_of_two(count: int) -> int:
    """Return the smallest power of 2 that is not less (at least 1).

    >>> next_power_of_two(5), next_power_of_two(8)
    (8, 8)
    """
    return 1 << max(count - 1, 0).bit_length()


def is_large(*arrays: DeviceArray) -> bool:
    """Return True if indices into one of these arrays need 64-bit numbers."""
    return any(_extent(array) >= _FEW for array in arrays)


def _extent(array: DeviceArray) -> int:
    reach = sum(
        abs(step) * max(n - 1, 0) for n, step in zip(array.shape, strides_of(array), strict=True)
    )
    return max(reach, int(array.size))


def neighbours(length: int, arrays: Sequence[tuple[DeviceArray, Iterable[int]]]) -> int:
    """Return the number of neighbours moved per access: a power of 2 that divides the length.

    Each array is paired with the strides that its indices depend on, except the stride between
    neighbours. The element size of the first array determines the size of a full access.
    """
    count = _WIDEST // arrays[0][0].itemsize
    while count > 1 and not (length % count == 0 and all(_fits(*each, count) for each in arrays)):
        count //= 2
    return count


def _fits(array: DeviceArray, strides: Iterable[int], count: int) -> bool:
    nbytes = min(count * array.itemsize, _WIDEST)
    starts = [address_of(array), *(step * array.itemsize for step in strides)]
    return all(start % nbytes == 0 for start in starts)


MOST_AXES = 8
"""Maximum number of axes after merging."""
MOST_BLOCKS_EACH = 16
"""Blocks for each multiprocessor from which on threads take several elements instead."""


@dataclass(frozen=True)
class StridedAxis:
    """Length of an axis, and its stride in each array, in elements."""

    length: int
    strides: tuple[int, ...]


def element_strides(array: Array) -> tuple[int, ...]:
    """Return the stride along each axis, in elements.

    >>> import numpy as np
    >>> element_strides(np.zeros((2, 3))[:, ::-1])
    (3, -1)
    """
    return tuple(stride // array.itemsize for stride in array.strides)


def axes_of(shape: Sequence[int], *strides: Sequence[int]) -> list[StridedAxis]:
    """Return axes of these lengths; one row of strides for each array.

    >>> axes_of((2, 3), (3, 1), (0, 1))
    [StridedAxis(length=2, strides=(3, 0)), StridedAxis(length=3, strides=(1, 1))]
    """
    return [StridedAxis(n, each) for n, each in zip(shape, zip(*strides, strict=True), strict=True)]


def merged(axes: Iterable[StridedAxis]) -> list[StridedAxis]:
    """Return the same elements in the same order, along the minimum number of axes.

    >>> merged(axes_of((2, 3, 4), (12, 4, 1), (12, 4, 1)))
    [StridedAxis(length=24, strides=(1, 1))]
    """
    result: list[StridedAxis] = []
    for axis in axes:
        if axis.length == 1:
            continue
        if result and result[-1].strides == tuple(axis.length * each for each in axis.strides):
            result[-1] = StridedAxis(result[-1].length * axis.length, axis.strides)
        else:
            result.append(axis)
    return result


def elements(axes: Iterable[StridedAxis]) -> int:
    """Return the number of elements along these axes."""
    return prod(axis.length for axis in axes)


@cache
def _structure(arrays: int) -> type[ctypes.Structure]:
    fields = [
        ("length", ctypes.c_longlong * MOST_AXES),
        ("stride", ctypes.c_longlong * MOST_AXES * arrays),
        ("rank", ctypes.c_int),
    ]
    return type(f"StridedAxes{arrays}", (ctypes.Structure,), {"_fields_": fields})


def strided_axes(axes: Sequence[StridedAxis], arrays: int) -> Parameter:
    """Return the parameter of a kernel that walks `arrays` arrays along these axes."""
    if len(axes) > MOST_AXES:
        raise DeviceError.build(
            "GPU kernel",
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


def blocks_for(count: int, threads: int) -> int:
    """Return the number of blocks for a loop over `count` elements.

    Every thread may take several turns.
    """
    return max(1, min(-(-count // threads), driver().multiprocessors * MOST_BLOCKS_EACH))


# --- threads

_BLOCK_SIZES = (128, 256, 512, 1024)
_STREAM_THREADS = 512
"""Number of threads for a row that is too long for registers."""
_WARPS = 4
"""Warps of a block in which each warp has a separate row."""


@dataclass(frozen=True)
class ThreadGroup:
    """`kind` is "thread", "warp" or "block"; each thread takes `together` neighbours at a time, at
    most `rounds` times (0: as often as it takes, without keeping them)."""

    kind: str
    rounds: int
    together: int
    threads: int

    @property
    def text(self) -> str:
        """C++ type of the group."""
        return f"{self.kind}_group<{self.rounds}, {self.together}>"

    @property
    def rows(self) -> int:
        """Rows that a block has at a time."""
        return {"thread": self.threads, "warp": self.threads // 32, "block": 1}[self.kind]

    def exactly(self, length: int) -> ThreadGroup:
        """Return the same group with registers only for rows of this length.

        This saves many registers if a kernel keeps several numbers per element.

        >>> thread_group_for(768, 8, 32).exactly(768).rounds
        3
        """
        lanes = 32 if self.kind == "warp" else self.threads
        return replace(self, rounds=min(self.rounds, -(-length // (lanes * self.together))))

    def blocks(self, rows: int) -> int:
        """Return the number of blocks for `rows` rows."""
        return -(-rows // self.rows)


def thread_group_for(length: int, together: int, most: int) -> ThreadGroup:
    """Return the group for rows of a length; a thread keeps at most `most` elements.

    >>> thread_group_for(768, 4, 32)
    ThreadGroup(kind='warp', rounds=8, together=4, threads=128)
    >>> thread_group_for(1 << 20, 1, 32).rounds
    0
    """
    pieces = -(-length // together)
    rounds = next_power_of_two(-(-pieces // 32))
    if rounds * together <= most:
        return ThreadGroup("warp", rounds, together, 32 * _WARPS)
    for threads in _BLOCK_SIZES:
        rounds = next_power_of_two(-(-pieces // threads))
        if rounds * together <= most:
            return ThreadGroup("block", rounds, together, threads)
    return ThreadGroup("block", 0, together, _STREAM_THREADS)


def threads_for(numbers: int, fewest: int = 32, most: int = 256) -> int:
    """Return the number of threads of a block that works on `numbers` numbers simultaneously.

    A warp is added for every few numbers, since threads that wait for each other without work cost
    time.

    >>> threads_for(100), threads_for(1000), threads_for(1 << 20)
    (32, 256, 256)
    """
    threads = fewest
    while threads < most and threads * 4 <= numbers:
        threads *= 2
    return threads


def thread_per_row(threads: int = 128) -> ThreadGroup:
    """Return a group with a thread per row; neighbouring threads have neighbouring rows."""
    return ThreadGroup("thread", 0, 1, threads)
