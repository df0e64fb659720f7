"""Building blocks of the attention kernels: per-part memory, masks, blocks of queries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from llvmlite import ir

from caldera.core.tensor import DType, Shape
from caldera.kernels.native.codegen import (
    CACHE_LINE,
    I32,
    I64,
    MEMORY_TYPES,
    POINTER,
    ElementPointer,
    Emitter,
    Integer,
    Number,
    Pointer,
    RegisterValue,
    computed_type,
    load_wide,
    natural_lanes,
    store_narrow,
)
from caldera.kernels.native.movement import transposed
from caldera.kernels.native.product.microkernel import PackedMatrix

BLOCK = 32
"""Number of queries in a block."""
TOGETHER = 4
"""Vectors that one step of a loop over keys takes."""


def computed_name(dtype: str) -> str:
    """Return the dtype that values of this one are computed in, by name."""
    return "float64" if dtype == "float64" else "float32"


# --- sizes


def _distance(length: int, dtype: DType) -> int:
    """Return the distance between rows of a padded matrix.

    It is an odd number of cache lines. Otherwise, the elements of a column would compete for the
    same few cache sets.
    """
    step = TOGETHER * natural_lanes(computed_type(dtype.name))
    lines = -(-(-(-length // step) * step * dtype.itemsize) // CACHE_LINE)
    return (lines | 1) * CACHE_LINE // dtype.itemsize


@dataclass(frozen=True)
class HeadSizes:
    """Queries T, keys S, and the widths D of a key and E of a value, as in the op."""

    queries: int
    keys: int
    depth: int
    width: int

    @classmethod
    def of(cls, q: Shape, v: Shape) -> HeadSizes:
        return cls(q[-2], v[-2], q[-1], v[-1])

    def distances(self, dtype: DType) -> list[int]:
        """Between rows as long as there are keys, as a key is wide, and as a value is."""
        return [_distance(n, dtype) for n in (self.keys, self.depth, self.width)]

    def forward_elements(self, dtype: DType) -> int:
        """Return the elements of a part: keys, values, a block of queries, scores and results."""
        keys, depth, width = self.distances(dtype)
        return self.depth * keys + self.keys * width + BLOCK * (depth + keys + width)

    def backward_elements(self, dtype: DType) -> int:
        """Return the same for the gradient: keys both ways, values, three blocks, two matrices of
        scores, and the gradients of keys and values."""
        keys, depth, width = self.distances(dtype)
        laid_out = self.depth * keys + self.keys * depth + self.width * keys
        return laid_out + BLOCK * (2 * depth + width + 2 * keys) + self.keys * (depth + width)


# --- what both kernels are made of


class ScratchMatrices:
    """Allocator of matrices in the memory of a part."""

    def __init__(self, k: Emitter, memory: Pointer, elements: RegisterValue) -> None:
        self.rest = memory.at(k.part * elements)

    def matrix(self, rows: Number, columns: RegisterValue) -> PackedMatrix:
        taken = PackedMatrix(self.rest, columns)
        self.rest = self.rest.at(columns * rows)
        return taken


@dataclass(frozen=True)
class Mask:
    """A mask with one element for each key side by side, `down` elements from query to query."""

    base: ElementPointer
    down: Integer

    def at(self, offset: RegisterValue) -> Mask:
        """Return the mask of a head."""
        return Mask(self.base.at(offset), self.down)

    def apply(
        self, k: Emitter, scores: RegisterValue, row: RegisterValue, place: RegisterValue
    ) -> RegisterValue:
        """Apply the mask to the scores of a row, starting at `place`."""
        given = self.base.load(row * self.down + place, scores.lanes)
        if self.base.name == "bool":
            return k.select(given.differs(0), scores, -math.inf)
        return scores + given


def whole_vectors(length: RegisterValue, kind: ir.Type) -> RegisterValue:
    """Return a length rounded up to whole vectors."""
    lanes = natural_lanes(kind)
    return (length + (lanes - 1)) // lanes * lanes


def moved(matrix: PackedMatrix, offset: RegisterValue) -> PackedMatrix:
    return PackedMatrix(matrix.pointer.at(offset), matrix.down, matrix.right)


def rows_from(matrix: PackedMatrix, offset: RegisterValue, top: RegisterValue) -> PackedMatrix:
    """Return a head's matrix from a row on."""
    return PackedMatrix(moved(matrix, offset).row(top), matrix.down, matrix.right)


def lay_out(
    k: Emitter,
    target: PackedMatrix,
    source: PackedMatrix,
    shape: tuple[RegisterValue, RegisterValue],
    dtype: str,
    scale: Number = 1.0,
) -> None:
    """Copy a matrix of a dtype into a part's memory; padding columns become 0."""
    _call_copy(k, "lay_out", target, source, shape, dtype, scale)


def write(
    k: Emitter,
    target: PackedMatrix,
    source: PackedMatrix,
    shape: tuple[RegisterValue, RegisterValue],
    dtype: str,
    scale: Number = 1.0,
) -> None:
    """Copy a matrix from a part's memory to where its dtype is this one."""
    _call_copy(k, "write", target, source, shape, dtype, scale)


def _call_copy(
    k: Emitter,
    name: str,
    target: PackedMatrix,
    source: PackedMatrix,
    shape: tuple[RegisterValue, RegisterValue],
    dtype: str,
    scale: Number,
) -> None:
    kind = computed_type(dtype)
    pads = name == "lay_out"
    function = k.internal_function(
        f"{name}_{dtype}",
        [POINTER, I64, I64, POINTER, I64, I64, I64, I64, kind],
        lambda inside, *given: _copy(inside, dtype, pads, *given),
    )
    # Used several times: a single copy compiles faster than inlined ones.
    function.attributes.add("noinline")
    distances = [k.constant(n, I64) for n in (target.down, target.right, source.down, source.right)]
    k.call(
        function,
        target.pointer,
        *distances[:2],
        source.pointer,
        *distances[2:],
        *shape,
        k.constant(scale, kind),
    )


def _copy(k: Emitter, dtype: str, pads: bool, *given: RegisterValue) -> None:
    to, down, right, start, source_down, source_right, rows, columns, scale = given
    own, other = computed_type(dtype), MEMORY_TYPES[dtype]
    target = PackedMatrix(Pointer(k, to.raw, own if pads else other), down, right)
    source = PackedMatrix(Pointer(k, start.raw, other if pads else own), source_down, source_right)
    read, written = (dtype, computed_name(dtype)) if pads else (computed_name(dtype), dtype)
    lanes = natural_lanes(own)
    # Rows and columns that are copied in square blocks, if the matrix is transposed.
    blocks = k.variable(0, I64)
    if pads:
        with k.if_then(right.equals(1) & source_down.equals(1) & source_right.differs(1)):
            blocks.value = k.constant(lanes, I64)
            _turn(
                k, target, source, (rows // lanes * lanes, columns // lanes * lanes), dtype, scale
            )
    turned_rows = blocks.value * (rows // lanes)
    turned_columns = blocks.value * (columns // lanes)
    with k.loop(0, rows) as row:
        goal, origin = target.row(row), source.row(row)
        with k.if_else(right.equals(1) & source_right.equals(1)) as (dense, apart):
            with dense:
                for i, count in k.vectors(0, columns, lanes, 1):
                    value = load_wide(k, origin, i, count, read) * scale
                    store_narrow(k, goal, i, value, written)
            with apart, k.loop(k.select(row < turned_rows, turned_columns, 0), columns) as i:
                value = load_wide(k, origin, i * source_right, 1, read) * scale
                store_narrow(k, goal, i * right, value, written)
        if pads:
            with k.loop(columns, down) as i:
                goal.store(i, 0.0)


def _turn(
    k: Emitter,
    target: PackedMatrix,
    source: PackedMatrix,
    shape: tuple[RegisterValue, RegisterValue],
    dtype: str,
    scale: RegisterValue,
) -> None:
    """Copy a matrix whose columns are dense to where rows are: square blocks change sides in
    registers. Element by element each would come from another line of the cache."""
    lanes = natural_lanes(target.pointer.type)
    with k.loop(0, shape[0], lanes) as top, k.loop(0, shape[1], lanes) as left:
        columns = [source.transposed.row(left + i) for i in range(lanes)]
        block = [load_wide(k, each, top, lanes, dtype) * scale for each in columns]
        for i, line in enumerate(transposed(k, block)):
            store_narrow(k, target.row(top + i), left, line, computed_name(dtype))


@dataclass(frozen=True)
class QueryBlock:
    """A block of queries: its first row, number of rows, and the keys visible to any query."""

    k: Emitter
    top: RegisterValue
    lines: RegisterValue
    seen: RegisterValue
    keys: RegisterValue
    queries: RegisterValue
    causal: bool
    wide: int

    @property
    def width(self) -> RegisterValue:
        """The keys that are seen, as laid out."""
        return (self.seen + (self.wide - 1)) // self.wide * self.wide

    def seen_by(self, line: RegisterValue) -> RegisterValue:
        """Return the number of keys that a query attends to."""
        return _seen(self.k, self.top + line, self.keys, self.queries) if self.causal else self.seen

    def mask(self, scores: PackedMatrix, masks: Sequence[Mask]) -> None:
        """Let the masks act on the scores."""
        if not masks:
            return
        k = self.k
        with k.loop(0, self.lines) as line:
            row = scores.row(line)
            for place, lanes in k.vectors(
                0, self.seen_by(line), natural_lanes(scores.pointer.type), 1
            ):
                value = row.load(place, lanes)
                for mask in masks:
                    value = mask.apply(k, value, self.top + line, place)
                row.store(place, value)

    def hidden(
        self, place: RegisterValue, limit: RegisterValue, scores: RegisterValue
    ) -> RegisterValue:
        """-inf in place of scores beyond the keys that a query sees."""
        k = self.k
        counts = ir.Constant(ir.VectorType(I32, self.wide), list(range(self.wide)))
        return k.select(RegisterValue(k, counts) < k.convert(limit - place, I32), scores, -math.inf)


def _seen(
    k: Emitter, query: RegisterValue, keys: RegisterValue, queries: RegisterValue
) -> RegisterValue:
    """Return the number of keys visible to a query with a causal mask.

    The last query and the last key have the same position.
    """
    return k.minimum(k.maximum(query + 1 + keys - queries, 0), keys)


@contextmanager
def each_block(
    k: Emitter,
    first: Number,
    last: Number,
    keys: RegisterValue,
    queries: RegisterValue,
    causal: bool,
    wide: int,
) -> Iterator[QueryBlock]:
    """A loop over the blocks first..last of a head's queries."""
    with k.loop(first, last) as index:
        top = index * BLOCK
        lines = k.minimum(queries - top, BLOCK)
        seen = _seen(k, top + lines - 1, keys, queries) if causal else keys
        yield QueryBlock(k, top, lines, seen, keys, queries, causal, wide)
