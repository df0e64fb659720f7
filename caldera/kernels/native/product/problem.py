"""A product on the CPU: its operands in BLAS layout, the split of its work, and its epilogue.

BLAS requires one of a matrix's two axes to be dense. An operand in another layout (with gaps,
reversed, repeated), or in half precision, is first copied into a workspace by a native call. An
epilogue is a bias, then an activation, on values in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any

import numpy as np

from caldera.base.threads import thread_count
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.ops.activation import SELU_ALPHA, SELU_SCALE
from caldera.core.tensor import HALVES, Shape, size
from caldera.kernels.common.binding import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.common.product import Epilogue, Matrices, as_matrices, offsets_of, steps
from caldera.kernels.native.codegen import (
    ElementPointer,
    Emitter,
    Integer,
    NativeCall,
    Number,
    Pointer,
    RegisterValue,
    copy_elements,
    math,
    native_kernel,
    natural_lanes,
)
from caldera.kernels.native.movement import copy_calls
from caldera.kernels.table import Array

WORTH_SPLITTING = 400_000
"""Operations a part has at least: about ten microseconds."""
IN_CACHE = 1 << 17
"""Elements of a block that is finished while it is in cache."""
COLUMN_GRAIN, ROW_GRAIN = 8, 4
"""Granularity of block widths and heights, in multiples of a BLAS kernel's tile."""
FEWEST_ROWS = 128
"""Blocks of fewer rows would have the BLAS rearrange its other operand too often."""
WORTH_SPLITTING_COPIES = 1 << 15
"""Elements from which on a second thread makes copying faster."""
_VIEWS = frozenset({"transpose", "slice", "flip", "broadcast_to"})
"""Operations that can produce strides that BLAS does not support."""


# --- how the work is cut


def extent_of(node: Node) -> tuple[int, int, int, int]:
    """Return the number of products of a node, and rows, columns and length of each."""
    rows, columns = node.shape[-2:]
    left = node.inputs[1 if node.op.name == "matmul_accumulate" else 0]
    length = left.shape[-2 if node.attrs["ta"] else -1]
    return size(node.shape[:-2]), rows, columns, length


def blocks(count: int, rows: int, columns: int, parts: int, *, finish: bool) -> tuple[int, int]:
    """Return the rows and columns of the blocks into which each of `count` products is split.

    Among the grids with the required number of blocks, the one whose blocks are closest to squares
    is chosen: these read least.
    """
    each = -(-parts // max(count, 1))
    shapes = [
        (_rounded(rows, down, ROW_GRAIN), _rounded(columns, each // down, COLUMN_GRAIN))
        for down in range(1, each + 1)
        if each % down == 0
    ]
    height, width = min(shapes, key=sum)
    if finish:
        height = min(height, max(FEWEST_ROWS, IN_CACHE // width))
    return height, width


def _rounded(length: int, pieces: int, grain: int) -> int:
    return length if pieces == 1 else -(-length // (pieces * grain)) * grain


@dataclass(frozen=True)
class ProductBlock:
    """A part's rectangle of a product, in a kernel; `product` is its row of the table."""

    product: Pointer
    top: RegisterValue
    bottom: RegisterValue
    left: RegisterValue
    right: RegisterValue


@contextmanager
def blocks_of_part(
    k: Emitter,
    table: Pointer,
    count: RegisterValue,
    extent: tuple[RegisterValue, RegisterValue],
    size: tuple[RegisterValue, RegisterValue],
) -> Iterator[ProductBlock]:
    """A loop over this part's blocks of `size` of `count` products of an extent: rows, columns."""
    (rows, columns), (height, width) = extent, size
    across, down = (columns + width - 1) // width, (rows + height - 1) // height
    with k.loop(*k.part_range(count * across * down)) as task:
        product = table.at(task // (across * down) * 4)
        top, left = task // across % down * height, task % across * width
        bottom, right = k.minimum(top + height, rows), k.minimum(left + width, columns)
        yield ProductBlock(product, top, bottom, left, right)


def parts_for(work: int) -> int:
    """Return the number of threads that pays for this number of operations."""
    return max(1, min(thread_count(), work // WORTH_SPLITTING))


# --- operands


def prepared(array: Array, scratch: Scratch) -> tuple[Matrices, list[NativeCall]]:
    """Return matrices in BLAS layout, and the calls that copy them, if any."""
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
    """Return row-major memory: from the workspace if it has enough left, else newly allocated."""
    if workspace_bytes(Spec(shape, dtype)) <= scratch.rest.nbytes:
        return scratch.array(shape, dtype)
    return np.empty(shape, dtype)


def contiguous(array: Array, scratch: Scratch, calls: list[NativeCall]) -> Array:
    """Return an array in row-major order: itself, or a copy that another call makes."""
    if array.flags.c_contiguous:
        return array
    whole = dense(array.shape, array.dtype, scratch)
    calls += copied(np.atleast_2d(array), np.atleast_2d(whole))
    return whole


def copy_workspace(node: Node) -> int:
    """Return the workspace for copies of the inputs that may need one."""
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
    rows, columns = source.shape[-2:]
    (down, right), (target_down, target_right) = steps(source), steps(target)
    return [
        _copy.call(
            source=source,
            target=target,
            offsets=offsets,
            count=len(offsets),
            rows=rows,
            columns=columns,
            down=down,
            right=right,
            target_down=target_down,
            target_right=target_right,
            parts=thread_count() if source.size >= WORTH_SPLITTING_COPIES else 1,
        )
    ]


@native_kernel
def _copy(
    k: Emitter,
    source: ElementPointer,
    target: ElementPointer,
    offsets: Pointer,
    count: Integer,
    rows: Integer,
    columns: Integer,
    down: Integer,
    right: Integer,
    target_down: Integer,
    target_right: Integer,
) -> None:
    with k.loop(*k.part_range(count * rows)) as line:
        which, row = line // rows, line % rows
        origin = source.at(offsets.load(which * 2) + row * down)
        goal = target.at(offsets.load(which * 2 + 1) + row * target_down)
        with k.if_else(right.equals(1) & target_right.equals(1)) as (both, neither):
            with both:
                copy_elements(k, goal, origin, columns, natural_lanes(target.place.type))
            with neither, k.loop(0, columns) as i:
                goal.store(i * target_right, origin.load(i * right))


def apply_epilogue(
    k: Emitter, epilogue: Epilogue, bias: Pointer | None, x: RegisterValue, column: Number
) -> RegisterValue:
    """Apply the epilogue to `x`, which starts at this column."""
    if bias is not None:
        x = x + bias.load(column, x.lanes)
    if epilogue.activation is None:
        return x
    return ACTIVATIONS[epilogue.activation](k, x, **dict(epilogue.attributes))


# --- the activations; `graph/ops/activation.py` says what they are and why they are clipped


def _relu(k: Emitter, x: RegisterValue) -> RegisterValue:
    return math.maximum(k, x, 0.0)


def _elu(k: Emitter, x: RegisterValue, alpha: float) -> RegisterValue:
    below = math.expm1(k, k.select(x > 0.0, 0.0, x)) * alpha
    return k.select(x > 0.0, x, below)


def _softplus(k: Emitter, x: RegisterValue) -> RegisterValue:
    return _relu(k, x) + math.log1p(k, math.exp_of_negative(k, -math.absolute(k, x)))


def _gelu(k: Emitter, x: RegisterValue, approximate: bool) -> RegisterValue:
    if approximate:
        inner = math.tanh(k, x * sqrt(2 / pi) * (x * x * 0.044715 + 1.0))
    else:
        inner = math.erf(k, x * sqrt(0.5))
    return math.maximum(k, x, -40.0) * (inner * 0.5 + 0.5)


def _hard_sigmoid(k: Emitter, x: RegisterValue) -> RegisterValue:
    return math.minimum(k, math.maximum(k, x * (1 / 6) + 0.5, 0.0), 1.0)


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "relu": _relu,
    "sigmoid": math.sigmoid,
    "tanh": math.tanh,
    "elu": _elu,
    "gelu": _gelu,
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": lambda k, x: math.maximum(k, x, -3.0) * _hard_sigmoid(k, x),
    "leaky_relu": lambda k, x, slope: k.select(x > 0.0, x, x * slope),
    "selu": lambda k, x: _elu(k, x, SELU_ALPHA) * SELU_SCALE,
    "silu": lambda k, x: math.maximum(k, x, -1000.0) * math.sigmoid(k, x),
    "softplus": _softplus,
}
"""Activation functions by the names of their ops."""
