"""Products as parts: tiles on tensor cores, with fused epilogues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from caldera.core.graph.node import Node
from caldera.core.memory.software import address_of
from caldera.kernels.cuda.codegen.kernel import Array, flags
from caldera.kernels.cuda.persistent.gather import Gather
from caldera.kernels.cuda.persistent.program import SharedMemoryMap
from caldera.kernels.cuda.persistent.tasks import (
    THREADS,
    Early,
    ProductSize,
    RegisterPrefetch,
    TaskText,
    TileAccess,
    TilePrefetch,
    TileTask,
    WarpTiling,
    Zones,
    dynamic_floats,
    tilings_for,
    units_of,
)
from caldera.kernels.table import Call

Epilogue = Callable[[TileAccess, str], list[str]]
"""Statements for one element of a product, whose coordinates are `row` and `column`."""
LOAD = 64 * 64
"""Minimum number of sums that count as a unit of other parts."""
MOST_UNROLLED = 4
"""Maximum number of elements per thread with an unrolled epilogue; more make the code too long."""


@dataclass(frozen=True)
class ProductOperand:
    """Matrix in memory, seen with the rows and columns of the product.

    `rows` is the gather of its rows, if they are read directly from the table.
    """

    array: Array
    transposed: bool
    lead: int
    rows: Gather | None = None

    @property
    def reads(self) -> list[Array]:
        """Arrays that must be complete before the operand can be loaded."""
        return [self.array] if self.rows is None else list(self.rows.reads)

    def type_text(self, side: TileSide, count: int, depth: int) -> str:
        """Return the C++ type of a part with `count` rows or columns and `depth` inner indices."""
        aligned = self.lead % 4 == 0 and address_of(self.array) % 16 == 0
        options = flags(side.along, aligned, self.rows is not None, side.paired)
        return f"Staged<{self.lead}, {count}, {options}, {side.wide}, {depth}>"


def operand(array: Array, transposed: bool) -> ProductOperand | None:
    """Return the matrix of a product; None if neither its rows nor its columns are dense."""
    if array.ndim != 2 or array.dtype != np.float32 or not array.size:
        return None
    seen = array.transpose(1, 0) if transposed else array
    down, across = (stride // 4 for stride in seen.strides)
    rows, columns = seen.shape
    if (across == 1 or columns == 1) and (down >= columns or rows == 1):
        return ProductOperand(seen, False, max(down, columns))
    if (down == 1 or rows == 1) and (across >= rows or columns == 1):
        return ProductOperand(seen, True, max(across, rows))
    return None


def operands(call: Call) -> tuple[ProductOperand, ProductOperand] | None:
    """Return the two matrices of a product of matrices in float32; None if it is something else."""
    first = 1 if call.node.op.name == "matmul_accumulate" else 0
    attrs = call.node.attrs
    a = operand(call.inputs[first], attrs["ta"])
    b = operand(call.inputs[first + 1], attrs["tb"])
    return None if a is None or b is None or call.outputs[0].ndim != 2 else (a, b)


def gathered(left: ProductOperand, rows: Gather | None) -> ProductOperand:
    """Return an operand whose rows are taken from the table of a gather, if there is one."""
    if rows is None:
        return left
    return ProductOperand(rows.table, False, rows.table.strides[0] // 4, rows)


@dataclass(frozen=True)
class TileSide:
    """An operand's part of a tile: its width, and a flag that is True if its lines are along the
    sums.

    If the lines of both operands are along the sums, they are paired.
    """

    wide: int
    along: bool
    paired: bool = False

    def floats(self, depth: int) -> int:
        """Return the floats of shared memory for `depth` inner indices."""
        rounded = units_of(depth, 8) * 8
        if self.along:
            return self.wide * (apart(rounded) if self.paired else rounded + 4)
        return apart(self.wide) * rounded


def sides(left: tuple[int, bool], right: tuple[int, bool]) -> list[TileSide]:
    """Return both operands of a product, by their widths and the direction of their lines.

    The flags are True for lines along the sums.
    """
    paired = left[1] and right[1]
    return [TileSide(*left, paired), TileSide(*right, paired)]


def fitting(sides: Sequence[TileSide], inner: int, floats: int) -> int:
    """Return the number of inner indices that fit into this number of floats."""
    depth = inner
    while depth > 8 and sum(side.floats(depth) for side in sides) > floats:
        depth = (depth - 1) // 8 * 8
    return depth


@dataclass(frozen=True)
class ProductJob:
    """Product to compute, its result, and the epilogue of each sum."""

    node: Node
    left: ProductOperand
    right: ProductOperand
    result: Array
    finish: Epilogue

    @property
    def name(self) -> str:
        """Human-readable name."""
        rows, columns = self.result.shape
        return f"{self.node.op.name} {rows}x{columns}x{self.inner}"

    @property
    def inner(self) -> int:
        """The length of the sums."""
        return int(self.right.array.shape[0])

    @property
    def exact(self) -> bool:
        """True if products use full float32 precision."""
        return bool(self.node.attrs.get("compute") != "tf32")

    def size(self, early: Early) -> ProductSize:
        """Return the properties that determine the tiling."""
        rows, columns = self.result.shape
        left, right = (not all(map(early, each.reads)) for each in (self.left, self.right))
        return ProductSize(rows, columns, self.inner, left, right, exact=self.exact)

    def task(self, blocks: int, early: Early, reads: list[Array], writes: list[Array]) -> TileTask:
        """Return the product as a task for about this number of blocks."""
        # The tiling that is thought to be fastest of those whose tiles fit into shared memory.
        tiling = next(
            each
            for each in tilings_for(self.size(early), max(blocks, 1))
            if _Writer(self, each, TileAccess(), early).fits
        )
        return TileTask(
            self.name,
            tiling.units(*self.result.shape),
            reads,
            writes,
            lambda places, early, start: _Writer(self, tiling, places, early).text(start),
            heavy=True,
            load=self.result.size // LOAD,
        )


class _Writer:
    """Writes the code of a product."""

    def __init__(
        self, job: ProductJob, tiling: WarpTiling, places: TileAccess, early: Early
    ) -> None:
        self._job, self._tiling, self._early = job, tiling, early
        self._places = places
        rolled = tiling.each > MOST_UNROLLED
        self._held = (
            TilePrefetch(places, job.result.shape) if rolled else RegisterPrefetch(places, "i")
        )
        self._ending = job.finish(self._held, "sum")

    @property
    def _tile(self) -> int:
        """Floats of a tile in addition to the operands, and of a layer of sums."""
        return self._tiling.rows * apart(self._tiling.columns)

    def _depth(self) -> int:
        """Return the number of inner indices that are loaded to shared memory together."""
        floats = dynamic_floats() - (len(self._held.tiles) + self._tiling.parts) * self._tile
        return fitting(self._sides, self._job.inner, floats)

    @property
    def _sides(self) -> list[TileSide]:
        left, right = self._job.left, self._job.right
        return sides(
            (self._tiling.rows, not left.transposed), (self._tiling.columns, right.transposed)
        )

    def _is_early(self, operand: ProductOperand) -> bool:
        return all(map(self._early, operand.reads))

    @property
    def fits(self) -> bool:
        """True if a block has enough shared memory for it."""
        return self._layout(None).zones.end(None) <= dynamic_floats()

    def _layout(self, start: int | None) -> SharedMemoryMap:
        """Return the layout of shared memory."""
        job, depth, layout = self._job, self._depth(), SharedMemoryMap()
        sums = self._tiling.parts * self._tile
        sided = zip("ab", (job.left, job.right), self._sides, strict=True)
        sized = [(name, side.floats(depth), self._is_early(each)) for name, each, side in sided]
        early = sum(floats for _, floats, is_early in sized if is_early)
        late = sum(floats for _, floats, is_early in sized if not is_early)
        over_early = late < sums <= early
        for name, floats, is_early in sized:
            layout.add(name, floats, early=is_early)
        layout.lay_over("sums", sums, early=over_early)
        for number, array in enumerate(self._held.tiles):
            layout.add(f"kept{number}", self._tile, early=self._early(array))
        layout.end(start)
        # The numbers of rows have one place only.
        layout.soon = job.left.rows is None
        return layout

    def _types(self) -> list[str]:
        job, tiling, depth = self._job, self._tiling, self._depth()
        rows, columns = job.result.shape
        first, second = self._sides
        left = job.left.type_text(first, rows, depth)
        right = job.right.type_text(second, columns, depth)
        down = units_of(rows, tiling.rows)
        return [
            f"typedef {tiling_text(tiling, job.exact)} T;",
            f"typedef {left} L;",
            f"typedef {right} R;",
            f"i32 first_row = unit % {down} * T::M, first_column = unit / {down} * T::N;",
        ]

    def _begin(self, layout: SharedMemoryMap, *, ahead: bool) -> list[str]:
        """Return statements that load the early operands if `ahead`, otherwise the late ones."""
        job, lines, name = self._job, list[str](), self._places.name
        depth = self._depth()
        if self._is_early(job.left) == ahead:
            more = ", numbers" * (job.left.rows is not None)
            place, left = layout.place("a"), name(job.left.array)
            lines += self._numbers()
            lines.append(f"stage<L, T::THREADS>({place}, {left}, first_row, 0, {depth}{more});")
        if self._is_early(job.right) == ahead:
            place, right = layout.place("b"), name(job.right.array)
            lines.append(f"stage<R, T::THREADS>({place}, {right}, first_column, 0, {depth});")
        rows, columns = job.result.shape
        for number, array in enumerate(self._held.tiles):
            if self._early(array) == ahead:
                side = TileSide(self._tiling.columns, along=False)
                seen = ProductOperand(array, False, array.strides[0] // 4)
                kind = seen.type_text(side, columns, self._tiling.rows)
                lines += [
                    f"stage<{kind}, T::THREADS>({layout.place(f'kept{number}')}, {name(array)},",
                    f"    first_column, first_row, min(T::M, {rows} - first_row));",
                ]
        return [*self._types(), *lines] if lines else []

    def _numbers(self) -> list[str]:
        """Return statements that read the table rows of the tile."""
        rows = self._job.left.rows
        if rows is None:
            return []
        return [
            f"if (threadIdx.x < T::M && first_row + threadIdx.x < {self._job.result.shape[0]}) {{",
            "    i32 row = first_row + threadIdx.x;",
            *(f"    {line}" for line in rows.number(self._places, ["row"], "number")),
            "    numbers[threadIdx.x] = (i32)number;",
            "}",
            "__syncthreads();",
        ]

    def text(self, start: int | None) -> tuple[TaskText, Zones]:
        """Return the statements, and the zones of shared memory that they use."""
        job, held, layout = self._job, self._held, self._layout(start)
        rows, columns = job.result.shape
        operands = ", ".join(self._places.name(each.array) for each in (job.left, job.right))
        each = each_element("i", "T", "first_column", rows, columns)
        if isinstance(held, TilePrefetch):
            each = each_line(rows, columns)
        tiles = [
            f"const float* kept{number} = {layout.place(f'kept{number}')};"
            for number in range(len(held.tiles))
        ]
        main = [
            *self._types(),
            *layout.checks({"a": "L::FLOATS", "b": "R::FLOATS", "sums": "T::PARTS * T::FLOATS"}),
            *layout.checks({f"kept{number}": "T::FLOATS" for number in range(len(held.tiles))}),
            "i32 thread = thread_now();",
            *tiles,
            f"float* sums = {layout.place('sums')};",
            "// These are read while the operands are on their way.",
            *held.statements(each, "T::EACH"),
            f"block_product<T, L, R, {job.inner}>({operands}, first_row, first_column,",
            f"    {layout.place('a')}, {layout.place('b')}, sums, numbers);",
            *each,
            "        float sum = tile_sum<T>(sums, below, across);",
            *(f"        {line}" for line in self._ending),
            "    }",
            "}",
        ]
        ahead, late = (self._begin(layout, ahead=ahead) for ahead in (True, False))
        return TaskText(main, ahead, late), layout.zones


def is_product(node: Node) -> bool:
    """Return True if a node is one of the ops that this module supports."""
    return node.op.name in ("matmul", "matmul_epilogue", "matmul_accumulate")


def each_element(index: str, tiling: str, first: str, rows: int, columns: int) -> list[str]:
    """Return the beginning of a loop over a thread's elements of a tile; two brackets end it."""
    return [
        "#pragma unroll",
        f"for (i32 {index} = 0; {index} < {tiling}::EACH; {index}++) {{",
        f"    i32 e = thread + {index} * {tiling}::THREADS;",
        f"    i32 below = e / {tiling}::N, across = e % {tiling}::N;",
        f"    i32 row = first_row + below, column = {first} + across;",
        f"    if (below < {tiling}::M && row < {rows} && column < {columns}) {{",
    ]


def each_line(rows: int, columns: int) -> list[str]:
    """Return the loop for many elements: a thread computes strided elements of a column."""
    return [
        "i32 across = thread % T::N, column = first_column + across;",
        "#pragma unroll 4",
        "for (i32 below = thread / T::N; below < T::M; below += T::TOGETHER) {",
        "    i32 row = first_row + below;",
        f"    if (thread < T::TOGETHER * T::N && row < {rows} && column < {columns}) {{",
    ]


def tiling_text(tiling: WarpTiling, exact: bool) -> str:
    """Return the C++ type of a tiling."""
    shape = (tiling.warp_rows, tiling.warp_columns, tiling.down, tiling.across, tiling.parts)
    return f"Tiling<{THREADS}, {', '.join(map(str, shape))}, {flags(exact)}>"


def apart(wide: int) -> int:
    """Return the stride of lines of `wide` elements in shared memory, as in CUDA's `apart`."""
    return wide if wide // 8 % 2 else wide + 8
