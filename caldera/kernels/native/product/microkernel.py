"""Micro-kernels of matrix products: a tile of the result, accumulated in registers.

A tile is a few rows, each of a few vectors. Tiles at the edges are moved inwards and compute some
elements twice, which is cheaper than a special case for every remaining size.

The micro-kernel of packed products is compiled once for each dtype. The kernels that pack call it
by its address. Their code differs by epilogue, whereas the micro-kernel is most of the code to
compile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from llvmlite import ir

from caldera.core.tensor.dtype import DType
from caldera.kernels.native.codegen import (
    F64,
    I64,
    POINTER,
    Emitter,
    Integer,
    MutableRegister,
    Number,
    Pointer,
    Real,
    RegisterValue,
    copy_elements,
    host_target,
    line_lanes,
    load_wide,
    native_kernel,
    natural_lanes,
    vector,
)
from caldera.kernels.native.codegen import lanes as lanes_of
from caldera.kernels.native.product.packing import TERMS, Lines, RegisterTile, group_of


def most_vectors() -> int:
    """Return the maximum width of a tile in vectors."""
    return 4 if host_target().registers >= 32 else 2


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix inside a kernel: its address and the distances between rows and between columns."""

    pointer: Pointer
    down: Number
    right: Number = 1

    def row(self, index: Number) -> Pointer:
        """Return the address of a row."""
        return self.pointer.at(self.pointer.k.constant(index, I64) * self.down)

    @property
    def transposed(self) -> PackedMatrix:
        """Matrix with rows and columns exchanged."""
        return PackedMatrix(self.pointer, self.right, self.down)


def add_products(
    k: Emitter,
    sums: Sequence[Sequence[MutableRegister]],
    a: PackedMatrix,
    lines: Sequence[RegisterValue],
    b: PackedMatrix,
    places: Sequence[RegisterValue],
    length: Number,
    dtype: str,
) -> None:
    """sums[i][j] += a[lines[i], :] @ b[:, places[j]...] for matrices of a dtype.

    The rows of b are dense.
    """
    lanes = lanes_of(sums[0][0].type)
    rows = [a.row(line) for line in lines]
    with k.loop(0, length) as i:
        across = b.row(i)
        factors = [load_wide(k, across, place, lanes, dtype) for place in places]
        k.add_outer_product(
            sums, (load_wide(k, row, i * a.right, 1, dtype) for row in rows), factors
        )


_HEIGHT = 4
"""Rows of the tiles of `multiply`: few enough for 16 registers, with two vectors each."""


def multiply(
    k: Emitter,
    c: PackedMatrix,
    a: PackedMatrix,
    b: PackedMatrix,
    extent: tuple[Number, Number, Number],
    *,
    accumulate: bool = False,
) -> None:
    """c = a @ b, or c += a @ b, inside a kernel: for matrices that fit into the cache.

    `extent` is rows, columns and the length of the sums. The rows of b and c are dense, and the
    number of columns is a multiple of the vector's lanes (so the matrices are padded ones).
    """
    kind = c.pointer.type
    suffix = "add" if accumulate else "set"
    function = k.internal_function(
        f"multiply_{suffix}_{kind}",
        [POINTER, I64, POINTER, I64, I64, POINTER, I64, I64, I64, I64],
        lambda inside, *given: _multiply(inside, kind, accumulate, *given),
    )
    # It is called from several places, and each call is long.
    function.attributes.add("noinline")
    numbers = [k.constant(n, I64) for n in (c.down, a.down, a.right, b.down, *extent)]
    c_down, a_down, a_right, b_down, rows, columns, length = numbers
    k.call(
        function,
        c.pointer,
        c_down,
        a.pointer,
        a_down,
        a_right,
        b.pointer,
        b_down,
        rows,
        columns,
        length,
    )


def _multiply(k: Emitter, kind: ir.Type, accumulate: bool, *given: RegisterValue) -> None:
    c_raw, c_down, a_raw, a_down, a_right, b_raw, b_down, rows, columns, length = given
    a, b, c = (
        PackedMatrix(Pointer(k, raw.raw, kind), down, right)
        for raw, down, right in ((a_raw, a_down, a_right), (b_raw, b_down, 1), (c_raw, c_down, 1))
    )
    lanes, vectors = natural_lanes(kind), most_vectors()
    dtype = "float64" if kind == F64 else "float32"
    with k.loop(0, columns, lanes * vectors) as left, k.loop(0, rows, _HEIGHT) as top:
        lines = [k.minimum(top + i, rows - 1) for i in range(_HEIGHT)]
        places = [k.minimum(left + j * lanes, columns - lanes) for j in range(vectors)]
        goals = [c.row(line) for line in lines]
        zero = k.constant(0.0, vector(kind, lanes))
        # All loads precede the stores: a row that occurs twice is then added only once.
        sums = [
            [k.variable(goal.load(place, lanes) if accumulate else zero) for place in places]
            for goal in goals
        ]
        add_products(k, sums, a, lines, b, places, length, dtype)
        for goal, totals in zip(goals, sums, strict=True):
            for place, total in zip(places, totals, strict=True):
                goal.store(place, total.value)


_SOON = 8
"""Prefetch distance in terms, from the second cache to the first.

A panel is too large to stay in the first cache.
"""


@native_kernel
def _tile(
    k: Emitter,
    a: Pointer,
    panel: Pointer,
    goal: Pointer,
    ahead: Pointer,
    at: Integer,
    down: Integer,
    right: Integer,
    leading: Integer,
    terms: Integer,
    high: Integer,
    wide: Integer,
    step: Integer,
    jump: Integer,
    alpha: Real,
    keep: Real,
    shape: tuple[int, int, int],
    packed: bool,
) -> None:
    """goal = alpha * lines @ panel + keep * goal for `high` rows and `wide` columns.

    The lines of `a` start at number `at`. The distances between and within lines are `down` and
    `right`, which are constants if the lines are `packed`. In that case, the tile also prefetches
    cache lines from `ahead` on, with strides of `step` and `jump` elements. Full tiles and tiles of
    half the height are written directly. Other tiles are first stored on the stack, and only the
    rows and columns that exist are copied.
    """
    tile = RegisterTile(*shape)
    scales = k.convert(alpha, goal.type), k.convert(keep, goal.type)
    distances = (k.constant(1, I64), k.constant(tile.height, I64)) if packed else (down, right)
    half = max(1, tile.height // 2)
    lines = Lines(ahead, step, jump) if packed else None

    def sum_up(height: int, vectors: int, *, whole: bool) -> None:
        rows = _rows(k, a, at, distances[0], height, None if whole else high)
        if whole:
            _fetch(k, goal, leading, height, vectors * tile.lanes)
        sums = _sums(k, tile, rows, distances[1], panel, terms, vectors, lines)
        if whole:
            _write(k, sums, goal, leading, *scales)
        else:
            _write_some(k, sums, goal, leading, *scales, high, wide)

    is_wide, is_high = wide.equals(tile.width), high.equals(tile.height)
    with k.if_else(is_wide & (is_high | high.equals(half))) as (whole, some):
        with whole, k.if_else(is_high) as (full, low):
            with full:
                sum_up(tile.height, tile.vectors, whole=True)
            with low:
                sum_up(half, tile.vectors, whole=True)
        with some:
            for count in range(1, tile.vectors + 1):
                above, below = wide > (count - 1) * tile.lanes, wide <= count * tile.lanes
                with k.if_then(above & below):
                    sum_up(tile.height, count, whole=False)


def _fetch(k: Emitter, goal: Pointer, leading: RegisterValue, height: int, width: int) -> None:
    """Have the result brought near while it is summed up."""
    step = line_lanes(goal.type)
    for i in range(height):
        for j in range(0, width, step):
            k.prefetch(goal.at(leading * i + j), to_write=True)


def _rows(
    k: Emitter,
    a: Pointer,
    at: RegisterValue,
    down: RegisterValue,
    height: int,
    count: RegisterValue | None,
) -> list[Pointer]:
    """Return the addresses of rows of the left matrix.

    Rows from `count` on are replaced by the last existing row.
    """
    numbers = [k.constant(i, I64) for i in range(height)]
    if count is not None:
        numbers = [k.minimum(i, count - 1) for i in numbers]
    return [a.at((at + i) * down) for i in numbers]


def _sums(
    k: Emitter,
    tile: RegisterTile,
    rows: list[Pointer],
    right: RegisterValue,
    panel: Pointer,
    terms: RegisterValue,
    vectors: int,
    ahead: Lines | None,
) -> list[list[RegisterValue]]:
    lanes, kind = tile.lanes, vector(panel.type, tile.lanes)
    sums = [[k.variable(0.0, kind) for _ in range(vectors)] for _ in rows]
    is_wide = vectors == tile.vectors

    def add(term: RegisterValue) -> None:
        across = panel.at(term * tile.width)
        for j in range(0, tile.width if is_wide else 0, line_lanes(panel.type)):
            k.prefetch(across.at(_SOON * tile.width + j), soon=True)
        factors = [across.load(j * lanes, lanes) for j in range(vectors)]
        k.add_outer_product(sums, (row.load(term * right) for row in rows), factors)

    whole = k.constant(0, I64)
    if ahead is not None:
        group = group_of(panel)
        place, back = k.variable(0, I64), ahead.jump - ahead.step * (group - 1)
        whole = terms // TERMS * TERMS
        with k.loop(0, whole, TERMS) as term:
            k.prefetch(ahead.first.at(place.value))
            ends = (term % (TERMS * group)).equals(TERMS * (group - 1))
            place.value = place.value + k.select(ends, back, ahead.step)
            k.prefetch(rows[0].at((term + TERMS * _SOON) * right), soon=True)
            for i in range(TERMS):
                add(term + i)
    with k.loop(whole, terms) as term:
        add(term)
    return [[total.value for total in totals] for totals in sums]


def _write(
    k: Emitter,
    sums: list[list[RegisterValue]],
    goal: Pointer,
    leading: RegisterValue,
    alpha: RegisterValue,
    keep: RegisterValue,
) -> None:
    places = [
        (goal.at(leading * i + j * total.lanes), total * alpha)
        for i, totals in enumerate(sums)
        for j, total in enumerate(totals)
    ]
    with k.if_else(keep.equals(0.0)) as (fresh, added):
        with fresh:
            for place, total in places:
                place.store(0, total)
        with added:
            for place, total in places:
                place.store(0, k.fma(place.load(0, total.lanes), keep, total))


def _write_some(
    k: Emitter,
    sums: list[list[RegisterValue]],
    goal: Pointer,
    leading: RegisterValue,
    alpha: RegisterValue,
    keep: RegisterValue,
    high: RegisterValue,
    wide: RegisterValue,
) -> None:
    vectors, lanes = len(sums[0]), sums[0][0].lanes
    aside = k.alloca(goal.type, len(sums) * vectors * lanes)
    for i, totals in enumerate(sums):
        for j, total in enumerate(totals):
            aside.store((i * vectors + j) * lanes, total * alpha)
    with k.loop(0, high) as line:
        row, found = goal.at(line * leading), aside.at(line * (vectors * lanes))
        with k.if_else(keep.equals(0.0)) as (fresh, added):
            with fresh:
                copy_elements(k, row, found, wide, lanes)
            with added:
                for place, count in k.vectors(0, wide, lanes, 1):
                    row.store(place, k.fma(row.load(place, count), keep, found.load(place, count)))


_SLOTS = (
    "a",
    "panel",
    "goal",
    "ahead",
    "at",
    "down",
    "right",
    "leading",
    "terms",
    "high",
    "wide",
    "step",
    "jump",
    "alpha",
    "keep",
)
"""Arguments of the micro-kernel, in the order of its slots."""


def tile_address(dtype: DType, tile: RegisterTile, *, packed: bool) -> int:
    """Return the address of the micro-kernel."""
    arrays, numbers = dict.fromkeys(_SLOTS[:4], np.empty(1, dtype)), dict.fromkeys(_SLOTS[4:-2], 1)
    kinds = {"shape": (tile.height, tile.vectors, tile.lanes), "packed": packed}
    _, form = _tile.packed({**arrays, **numbers, "alpha": 1.0, "keep": 0.0, **kinds})
    return _tile.address(form)


@dataclass(frozen=True)
class TileCalls:
    """Calls of the micro-kernel from another kernel, for the tiles of a panel.

    Arguments are passed in slots. Arguments that are the same for all tiles are stored there once.
    """

    k: Emitter
    address: RegisterValue
    slots: Pointer

    @classmethod
    def of(
        cls,
        k: Emitter,
        address: RegisterValue,
        panel: Pointer,
        *,
        down: Number,
        right: Number,
        leading: Number,
        terms: Number,
        wide: Number,
        alpha: RegisterValue,
        keep: RegisterValue,
    ) -> TileCalls:
        """Store the arguments of the micro-kernel that are the same for all tiles."""
        calls = cls(k, address, k.alloca(I64, len(_SLOTS)))
        calls._put(panel=k.pointer_to_int(panel), ahead=k.pointer_to_int(panel), step=0, jump=0)
        calls._put(down=down, right=right, leading=leading, terms=terms, wide=wide)
        calls._put(
            **{
                name: k.bitcast(k.convert(each, F64), I64)
                for name, each in (("alpha", alpha), ("keep", keep))
            }
        )
        return calls

    def ask(self, lines: Lines) -> None:
        """Have the next tile bring these near, if its rows are packed."""
        self._put(ahead=self.k.pointer_to_int(lines.first), step=lines.step, jump=lines.jump)

    def __call__(self, a: Pointer, goal: Pointer, *, at: Number, high: Number) -> None:
        """Sum up a tile."""
        k = self.k
        self._put(a=k.pointer_to_int(a), goal=k.pointer_to_int(goal), at=at, high=high)
        zero, one = k.constant(0, I64), k.constant(1, I64)
        k.call_address(self.address, ir.VoidType(), self.slots, zero, one)

    def _put(self, **words: Number) -> None:
        for name, word in words.items():
            self.slots.store(_SLOTS.index(name), self.k.constant(word, I64))
