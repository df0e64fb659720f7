"""Batches of matrices as native products take them: addresses, distances, and copies where needed.

BLAS wants one of a matrix's two axes dense. An operand that lies otherwise (with gaps, backwards,
repeated), or in half precision, is first copied into a workspace by a native call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caldera.config import settings
from caldera.graph.node import Node, Spec
from caldera.kernels.common.scratch import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.native.codegen.compiler import compiled
from caldera.kernels.native.codegen.emitter import (
    F32,
    F64,
    I16,
    I64,
    Emitter,
    Value,
    natural_lanes,
)
from caldera.kernels.native.codegen.half import load_wide, store_narrow
from caldera.kernels.native.codegen.program import NativeCall, native_call
from caldera.kernels.native.movement import copy_calls
from caldera.kernels.table import Array
from caldera.tensor.dtype import HALVES
from caldera.tensor.shape import Shape

TYPES = {"float32": F32, "float64": F64, "float16": I16, "bfloat16": I16}
"""How the elements lie in memory; halves are read and written by `half`."""
WORTH_SPLITTING = 1 << 15
"""Elements from which on a second thread makes copying faster."""
_VIEWS = frozenset({"transpose", "slice", "flip", "broadcast_to"})
"""What may give an input distances that BLAS cannot take."""


@dataclass(frozen=True)
class Matrices:
    """A batch of matrices: `leading` is the distance between rows (columns, if `transposed`)."""

    array: Array
    leading: int
    transposed: bool


def offsets_of(array: Array, batch: Shape) -> np.ndarray:
    """Where each matrix of an array, broadcast to this batch, begins: in elements."""
    whole = np.broadcast_to(array, (*batch, *array.shape[-2:]))
    found = np.zeros((), np.int64)
    for n, stride in zip(batch, whole.strides, strict=False):
        found = np.add.outer(found, np.arange(n) * (stride // array.itemsize))
    return found.ravel()


def steps(array: Array) -> tuple[int, int]:
    """The distances between rows and between columns, in elements."""
    down, right = array.strides[-2:]
    return down // array.itemsize, right // array.itemsize


def as_matrices(array: Array) -> Matrices | None:
    """The array as it lies; None if BLAS cannot take it so."""
    rows, columns = array.shape[-2:]
    down, right = steps(array)
    # Along an axis of one element the distance says nothing.
    if (right == 1 or columns <= 1) and (down >= max(columns, 1) or rows <= 1):
        return Matrices(array, down if rows > 1 else max(columns, 1), transposed=False)
    if (down == 1 or rows <= 1) and (right >= max(rows, 1) or columns <= 1):
        return Matrices(array, right if columns > 1 else max(rows, 1), transposed=True)
    return None


def prepared(array: Array, scratch: Scratch) -> tuple[Matrices, list[NativeCall]]:
    """Matrices that BLAS can take, and what has to run before they can be read."""
    found = as_matrices(array)
    if found is not None and array.dtype not in HALVES:
        return found, []
    # Reading along the dense axis is faster, and BLAS does not mind which one it is.
    flipped = found is not None and found.transposed
    source = array.swapaxes(-1, -2) if flipped else array
    copy = dense(source.shape, compute_dtype(array.dtype), scratch)
    calls = copied(source, copy)
    ready = as_matrices(copy.swapaxes(-1, -2) if flipped else copy)
    assert ready is not None
    return ready, calls


def dense(shape: Shape, dtype: np.dtype, scratch: Scratch) -> Array:
    """Row-major memory: from the workspace if there is room, else of its own."""
    if workspace_bytes(Spec(shape, dtype)) <= scratch.rest.nbytes:
        return scratch.array(shape, dtype)
    return np.empty(shape, dtype)


def copy_room(node: Node) -> int:
    """The workspace for copies of the inputs that may need one."""
    wide = [Spec(given.shape, compute_dtype(given.dtype)) for given in node.inputs]
    return sum(
        workspace_bytes(spec)
        for given, spec in zip(node.inputs, wide, strict=True)
        if given.dtype in HALVES or _may_lie_anyhow(given)
    )


def _may_lie_anyhow(node: Node) -> bool:
    while node.inputs and node.op.kind == "movement":
        if node.op.name in _VIEWS:
            return True
        node = node.inputs[0]
    return False


# --- copying


def copied(source: Array, target: Array) -> list[NativeCall]:
    """The calls that copy a batch of matrices, from and to any distances and float dtypes."""
    if source.size == 0:
        return []
    if source.dtype == target.dtype:
        plain = copy_calls(target, source)
        if plain is not None:
            return plain
    if abs(steps(target)[1]) > abs(steps(target)[0]):
        source, target = source.swapaxes(-1, -2), target.swapaxes(-1, -2)
    batch = source.shape[:-2]
    offsets = np.stack([offsets_of(source, batch), offsets_of(target, batch)], axis=1)
    address = compiled(_copy, source=source.dtype.name, target=target.dtype.name)
    parts = settings.threads if source.size >= WORTH_SPLITTING else 1
    return [
        native_call(
            address, source, target, offsets, len(offsets), *source.shape[-2:],
            *steps(source), *steps(target), parts=parts,
        )
    ]  # fmt: skip


def _copy(k: Emitter, source: str, target: str) -> None:
    read, written = k.pointer(0, TYPES[source]), k.pointer(1, TYPES[target])
    offsets = k.pointer(2, I64)
    count, rows, columns, down, right, target_down, target_right = (
        k.integer(slot) for slot in range(3, 10)
    )
    begin, end = k.share(count * rows)
    with k.loop(begin, end) as line:
        which, row = line // rows, line % rows
        origin = read.at(offsets.load(which * 2) + row * down)
        goal = written.at(offsets.load(which * 2 + 1) + row * target_down)

        def move(from_index: Value, to_index: Value, lanes: int) -> None:
            value = load_wide(k, origin, from_index, lanes, source)
            store_narrow(k, goal, to_index, value, target)

        with k.either(right.equals(1) & target_right.equals(1)) as (both, neither):
            with both:
                k.in_vectors(
                    0, columns, natural_lanes(TYPES[target]), lambda i, lanes: move(i, i, lanes)
                )
            with neither, k.loop(0, columns) as i:
                move(i * right, i * target_right, 1)
