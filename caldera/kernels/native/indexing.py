"""Reading and adding rows at computed positions: embeddings and their gradients.

Around the indexed axis an array is (before, length, after). A position that is not there stops the
program before anything else is computed from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import NoReturn

import numpy as np

from caldera.base.threads import thread_count
from caldera.core.tensor.dtype import float32, float64
from caldera.kernels.common.binding import may_overwrite
from caldera.kernels.native.codegen import (
    I64,
    INTEGERS,
    Emitter,
    Integer,
    NativeCall,
    NativeKernel,
    NativeRunner,
    Pointer,
    RegisterValue,
    address_of,
    as_integers,
    copy_elements,
    native_kernel,
    natural_lanes,
    offer,
)
from caldera.kernels.native.movement import copy_calls
from caldera.kernels.reference.arrays import check_range
from caldera.kernels.table import TABLE, Call, Runner

_WORTH_SPLITTING = 1 << 14
"""Elements moved from which on a second thread pays."""


def _position(
    k: Emitter, indices: Pointer, i: RegisterValue, length: RegisterValue, *, unsigned: bool
) -> RegisterValue:
    """Return an index as a position >= 0; negative indices count from the end.

    Values of at least 2^63 become negative here and stay so: no axis is as long.
    """
    index = k.convert(indices.load(i), I64, unsigned=unsigned)
    return index if unsigned else k.select(index < 0, index + length, index)


@native_kernel
def _gather(
    k: Emitter,
    out: Pointer,
    other: Pointer,
    indices: Pointer,
    status: Pointer,
    before: Integer,
    length: Integer,
    positions: Integer,
    after: Integer,
    unsigned: bool,
) -> None:
    """Gather elements of `other` at the indices, split by position."""
    lanes = natural_lanes(out.type)
    with k.loop(*k.part_range(before * positions)) as line:
        place = _position(k, indices, line % positions, length, unsigned=unsigned)
        with k.if_else((place >= 0) & (place < length)) as (inside, outside):
            with inside:
                source = other.at((line // positions * length + place) * after)
                target = out.at(line * after)
                copy_elements(k, target, source, after, lanes)
            with outside:
                status.store(0, 1)


@native_kernel
def _scatter_add(
    k: Emitter,
    out: Pointer,
    other: Pointer,
    places: Pointer | None,
    indices: Pointer,
    status: Pointer,
    before: Integer,
    length: Integer,
    positions: Integer,
    after: Integer,
    unsigned: bool,
) -> None:
    """Add the updates in `other`, which are contiguous or start at `places`.

    The work is split by column: updates of the same element are added in their order for any number
    of workers.
    """
    lanes = natural_lanes(out.type)
    begin, end = k.part_range(after, lanes)
    with k.loop(0, before) as outer, k.loop(0, positions) as position:
        place = _position(k, indices, position, length, unsigned=unsigned)
        with k.if_else((place >= 0) & (place < length)) as (inside, outside):
            with inside:
                target = out.at((outer * length + place) * after)
                number = outer * positions + position
                start = number * after if places is None else places.load(number)
                source = other.at(start)
                for i, count in k.vectors(begin, end, lanes, 1):
                    target.store(i, target.load(i, count) + source.load(i, count))
            with outside:
                status.store(0, 1)


def _refusal(name: str, indices: np.ndarray, length: int) -> Callable[[], NoReturn]:
    def refuse() -> NoReturn:
        check_range(name, indices, length)
        raise AssertionError("a valid position was rejected")

    return refuse


def _moving(
    call: Call,
    kernel: NativeKernel,
    out: np.ndarray,
    other: np.ndarray,
    x: np.ndarray,
    **more: np.ndarray | None,
) -> NativeCall:
    """Return the call that reads or adds along an axis of x."""
    indices, axis = call.inputs[1], call.node.attrs["axis"]
    status = np.zeros(1, np.int64)
    length = x.shape[axis]
    before, after = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
    busy = before * indices.size * after >= _WORTH_SPLITTING
    made = kernel.call(
        out=out,
        other=other,
        indices=indices,
        status=status,
        before=before,
        length=length,
        positions=indices.size,
        after=after,
        unsigned=indices.dtype.kind == "u",
        parts=thread_count() if busy else 1,
        **more,
    )
    return replace(made, refuse=_refusal(call.node.op.name, indices, length))


def _is_dense(*arrays: np.ndarray) -> bool:
    return all(array.flags.c_contiguous for array in arrays)


def _bind_gather(call: Call) -> Runner:
    (out,), (x, indices) = call.outputs, call.inputs
    if not _is_dense(out, x, indices):
        return _by_reference(call)
    return NativeRunner([_moving(call, _gather, as_integers(out), as_integers(x), x)])


def _bind_scatter_add(call: Call) -> Runner:
    (out,), (x, indices, updates) = call.outputs, call.inputs
    is_there = address_of(out) == address_of(x)
    copy = [] if is_there else copy_calls(out, x)
    after = x.ndim - call.node.attrs["axis"] - 1
    update = updates[(0,) * (updates.ndim - after)] if updates.size else updates
    if copy is None or not _is_dense(out, indices, update):
        return _by_reference(call)
    places = None if _is_dense(updates) else _places(updates, after)
    return NativeRunner([*copy, _moving(call, _scatter_add, out, updates, x, places=places)])


def _places(updates: np.ndarray, after: int) -> np.ndarray:
    """Return the offset of each update in elements.

    Updates of a sequence that was computed step by step have another order in memory.
    """
    shape = updates.shape[: updates.ndim - after]
    places = np.zeros(shape, np.int64)
    for axis, length in enumerate(shape):
        steps = np.arange(length) * (updates.strides[axis] // updates.itemsize)
        places += steps.reshape(-1, *[1] * (len(shape) - axis - 1))
    return places.reshape(-1)


def _by_reference(call: Call) -> Runner:
    oracle = next(each for each in TABLE.candidates(call.node, "cpu") if each.name == "reference")
    return oracle.bind(call)


offer(
    "gather",
    "native",
    _bind_gather,
    lambda node: node.inputs[0].dtype.itemsize in INTEGERS,
    priority=10,
)
offer(
    "scatter_add",
    "native",
    _bind_scatter_add,
    lambda node: node.inputs[0].dtype in (float32, float64),
    priority=10,
    in_place=may_overwrite,
)
