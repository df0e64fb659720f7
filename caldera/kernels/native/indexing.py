"""Reading and adding rows at computed positions: embeddings and their gradients.

Around the indexed axis an array is (before, length, after). A position that is not there stops the
program before anything else is computed from it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import NoReturn

import numpy as np

from caldera.config import settings
from caldera.graph.node import Node
from caldera.kernels.native.codegen.compiler import compiled
from caldera.kernels.native.codegen.emitter import (
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    Emitter,
    Pointer,
    Value,
    natural_lanes,
)
from caldera.kernels.native.codegen.program import NativeCall, NativeRunner, native_call
from caldera.kernels.native.movement import copy_calls
from caldera.kernels.reference.indexing import check_range
from caldera.kernels.table import TABLE, Call, Kernel, Runner
from caldera.tensor.dtype import float32, float64

_INTEGERS = {"int8": I8, "uint8": I8, "int16": I16, "int32": I32, "int64": I64}
_BY_SIZE = {1: I8, 2: I16, 4: I32, 8: I64}
_FLOATS = {"float32": F32, "float64": F64}
_WORTH_SPLITTING = 1 << 14
"""Elements moved from which on a second thread pays."""


def _position(k: Emitter, indices: Pointer, i: Value, length: Value, *, unsigned: bool) -> Value:
    """An index as a place from 0 on; negative ones count from the end."""
    index = k.convert(indices.load(i), I64, unsigned=unsigned)
    return k.select(index < 0, index + length, index)


def _gather(k: Emitter, itemsize: int, integer: str) -> None:
    """Slots: out, x, indices, before, length, positions, after, status. Shared out by position."""
    kind = _BY_SIZE[itemsize]
    out, x, indices = k.pointer(0, kind), k.pointer(1, kind), k.pointer(2, _INTEGERS[integer])
    before, length, positions, after = (k.integer(slot) for slot in range(3, 7))
    status = k.pointer(7, I64)
    lanes = natural_lanes(kind)
    first, last = k.share(before * positions)
    with k.loop(first, last) as line:
        place = _position(k, indices, line % positions, length, unsigned=integer == "uint8")
        with k.either((place >= 0) & (place < length)) as (inside, outside):
            with inside:
                source = x.at((line // positions * length + place) * after)
                target = out.at(line * after)
                k.in_vectors(0, after, lanes, lambda i, n: target.store(i, source.load(i, n)))
            with outside:
                status.store(0, 1)


def _scatter_add(k: Emitter, dtype: str, integer: str) -> None:
    """Slots: out, updates, indices, before, length, positions, after, status.

    Shared out by column, so that updates of one place are added in their order whatever the number
    of workers.
    """
    kind = _FLOATS[dtype]
    out, updates, indices = k.pointer(0, kind), k.pointer(1, kind), k.pointer(2, _INTEGERS[integer])
    before, length, positions, after = (k.integer(slot) for slot in range(3, 7))
    status = k.pointer(7, I64)
    lanes = natural_lanes(kind)
    begin, end = k.share(after, lanes)
    with k.loop(0, before) as outer, k.loop(0, positions) as position:
        place = _position(k, indices, position, length, unsigned=integer == "uint8")
        with k.either((place >= 0) & (place < length)) as (inside, outside):
            with inside:
                target = out.at((outer * length + place) * after)
                source = updates.at((outer * positions + position) * after)

                k.in_vectors(begin, end, lanes, partial(_add, target, source))
            with outside:
                status.store(0, 1)


def _add(target: Pointer, source: Pointer, i: Value, count: int) -> None:
    target.store(i, target.load(i, count) + source.load(i, count))


def _around(x: np.ndarray, indices: np.ndarray, axis: int) -> tuple[int, int, int, int]:
    return prod(x.shape[:axis]), x.shape[axis], indices.size, prod(x.shape[axis + 1 :])


def _refusal(name: str, indices: np.ndarray, length: int) -> Callable[[], NoReturn]:
    def refuse() -> NoReturn:
        check_range(name, indices, length)
        raise AssertionError("a position was refused that is there")

    return refuse


def _moving(
    call: Call, name: str, kernel: int, out: np.ndarray, other: np.ndarray, length: int
) -> NativeCall:
    indices = call.inputs[1]
    around = _around(out if name == "scatter_add" else other, indices, call.node.attrs["axis"])
    status = np.zeros(1, np.int64)
    busy = prod(around[::2]) * around[3] >= _WORTH_SPLITTING
    return native_call(
        kernel, out, other, indices, *around, status, parts=settings.threads if busy else 1,
        status=status, refuse=_refusal(name, indices, length),
    )  # fmt: skip


def _is_dense(*arrays: np.ndarray) -> bool:
    return all(array.flags.c_contiguous for array in arrays)


def _bind_gather(call: Call) -> Runner:
    (out,), (x, indices) = call.outputs, call.inputs
    if not _is_dense(out, x, indices):
        return _by_oracle(call)
    kernel = compiled(_gather, itemsize=x.itemsize, integer=indices.dtype.name)
    return NativeRunner([_moving(call, "gather", kernel, out, x, x.shape[call.node.attrs["axis"]])])


def _bind_scatter_add(call: Call) -> Runner:
    (out,), (x, indices, updates) = call.outputs, call.inputs
    copy = copy_calls(out, x)
    if copy is None or not _is_dense(out, indices, updates):
        return _by_oracle(call)
    kernel = compiled(_scatter_add, dtype=x.dtype.name, integer=indices.dtype.name)
    add = _moving(call, "scatter_add", kernel, out, updates, x.shape[call.node.attrs["axis"]])
    return NativeRunner([*copy, add])


def _by_oracle(call: Call) -> Runner:
    oracle = next(each for each in TABLE.candidates(call.node, "cpu") if each.name == "reference")
    return oracle.bind(call)


def _can_gather(node: Node) -> bool:
    x, indices = node.inputs
    return x.dtype.itemsize in _BY_SIZE and indices.dtype.name in _INTEGERS


def _can_add(node: Node) -> bool:
    x, indices, _ = node.inputs
    return x.dtype in (float32, float64) and indices.dtype.name in _INTEGERS


TABLE.add(Kernel("gather", "cpu", "native", _bind_gather, _can_gather, priority=10))
TABLE.add(Kernel("scatter_add", "cpu", "native", _bind_scatter_add, _can_add, priority=10))
