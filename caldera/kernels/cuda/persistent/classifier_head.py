"""A product with few columns, work on its rows, and a product with the result, as one part.

This is the head of a classifier: its scores, the loss and its gradient, and the gradient of the
layer below. Each block does all of this work for 16 rows, and then computes some columns of the
last product. Repeating the first product in every block is cheaper than two more barriers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from caldera.kernels.cuda.codegen.kernel import Array
from caldera.kernels.cuda.persistent.fusion import FusedProduct, conflict, meet, same
from caldera.kernels.cuda.persistent.loops import RowWork
from caldera.kernels.cuda.persistent.products import (
    ProductJob,
    ProductOperand,
    TileSide,
    apart,
    each_element,
    fitting,
    sides,
    tiling_text,
)
from caldera.kernels.cuda.persistent.program import SharedMemoryMap
from caldera.kernels.cuda.persistent.tasks import (
    THREADS,
    WARPS,
    Early,
    LocalRows,
    RegisterPrefetch,
    RowPrefetch,
    TaskText,
    TileAccess,
    TileTask,
    WarpTiling,
    Zones,
    dynamic_floats,
    units_of,
)

ROWS = WARPS
"""Rows of a tile: each is processed by one warp."""
MOST_COLUMNS = 32
"""Maximum number of columns of the first product."""


@dataclass(eq=False)
class ClassifierHead:
    """A product `first`, then `works` on its rows, then a product `second` with their result on the
    left.
    """

    first: FusedProduct
    works: list[RowWork]
    second: FusedProduct

    @property
    def members(self) -> list[FusedProduct | RowWork]:
        """All pieces of the head, in order."""
        return [self.first, *self.works, self.second]

    @property
    def writes(self) -> list[Array]:
        """Arrays that are written."""
        return [array for each in self.members for array in each.writes]

    @property
    def reads(self) -> list[Array]:
        """Arrays that are read, except those computed here."""
        made = self.writes
        found = [array for each in self.members for array in each.reads]
        return [array for array in found if not any(same(array, each) for each in made)]

    @property
    def is_sound(self) -> bool:
        """True if no block reads results of another block."""
        left = self.second.left
        before = self.members[:-1]
        given = [array for each in before for array in each.reads]
        made = [array for each in before for array in each.writes]
        more = [array for array in self.second.reads if left is None or not same(array, left)]
        worked = [array for each in self.works for array in each.writes]
        return not (
            meet(self.second.writes, [*given, *made])
            or meet(more, made)
            or meet(worked, self.first.reads)
        )

    def task(self, first: ProductJob, second: ProductJob, blocks: int) -> TileTask:
        """Return both products as one task."""
        rows, columns = second.result.shape
        down = units_of(rows, ROWS)
        wide = min(8 * units_of(columns, 8 * max(blocks // down, 1)), 128)
        parts = units_of(second.inner, 8)
        across = next(n for n in (1, 2, 4, 8, 16) if wide <= 40 * n or 2 * n * parts > WARPS)
        tiling = WarpTiling(ROWS, 8 * units_of(wide, 8 * across), 1, across, parts)
        return TileTask(
            f"{first.name} with {second.name}",
            tiling.units(rows, columns),
            self.reads,
            self.writes,
            lambda places, early, start: _Writer(self, first, second, tiling, places, early).text(
                start
            ),
            heavy=True,
        )


def fuse_classifier_heads(pieces: Sequence[Any]) -> list[Any]:
    """Return the pieces, with heads in place of their components."""
    found = list(pieces)
    for piece in pieces:
        if isinstance(piece, RowWork) and piece in found:
            head = _head(found, piece)
            if head is not None:
                place = found.index(piece)
                members = head.members
                before = [each for each in found[:place] if each not in members]
                after = [each for each in found[place:] if each not in members]
                found = [*before, head, *after]
    return found


def _head(pieces: list[Any], work: RowWork) -> ClassifierHead | None:
    """Return the head around this work on rows, if there is one."""
    products = [each for each in pieces if isinstance(each, FusedProduct)]
    first = next((p for p in products if any(same(p.result, each) for each in work.reads)), None)
    second = next(
        (p for p in products if p.left is not None and same(p.left, work.writes[0])), None
    )
    if first is None or second is None or first.rows is not None or second.rows is not None:
        return None
    rows, columns = first.result.shape
    fits = columns <= MOST_COLUMNS and second.result.shape[0] == rows == work.rows
    # Further works on the same rows do not prevent a head: they become part of the head.
    others = [
        each
        for each in pieces
        if isinstance(each, RowWork) and each is not work and each.rows == rows
        if any(same(first.result, array) for array in each.reads)
    ]
    rest = [each for each in pieces if each not in others]
    if not fits or not first.stores or not all(_can_move(rest, p, work) for p in (first, second)):
        return None
    head = ClassifierHead(first, [work], second)
    if not head.is_sound:
        return None
    for each in others:
        wider = ClassifierHead(first, [*head.works, each], second)
        alone = not any(conflict(each, other) for other in head.works)
        if alone and _can_move(pieces, each, work) and wider.is_sound:
            head = wider
        elif not all(_can_move(pieces, p, work) for p in (first, second)):
            return None
    return head


def _can_move(pieces: list[Any], piece: Any, to: RowWork) -> bool:
    """Return True if no piece in between prevents moving a piece to the position of another."""
    start, end = sorted((pieces.index(piece), pieces.index(to)))
    return not any(conflict(piece, each) for each in pieces[start + 1 : end])


class _Writer:
    """Writes the code of a head."""

    def __init__(
        self,
        head: ClassifierHead,
        first: ProductJob,
        second: ProductJob,
        tiling: WarpTiling,
        places: TileAccess,
        early: Early,
    ) -> None:
        self._head, self._jobs, self._places, self._early = head, (first, second), places, early
        self._wide = 8 * units_of(first.result.shape[1], 8)
        parts = min(WARPS, units_of(first.inner, 8))
        self._tilings = (WarpTiling(ROWS, self._wide, 1, 1, parts), tiling)
        self._stride = self._second[0].floats(self._wide) // ROWS
        matrices = [(first.result, "scores", self._stride)]
        matrices.append((head.works[0].writes[0], "gradients", self._stride))
        self._local = LocalRows(places, matrices)
        self._held = RegisterPrefetch(self._local, "i"), RegisterPrefetch(places, "i", "_second")
        self._ends = [
            job.finish(held, "sum") for job, held in zip(self._jobs, self._held, strict=True)
        ]

    @property
    def _sides(self) -> list[TileSide]:
        """The operands of the first product, and the right one of the second."""
        right = (self._wide, self._jobs[0].right.transposed)
        return [*sides((ROWS, True), right), self._second[1]]

    @property
    def _second(self) -> list[TileSide]:
        """Tile sides of both operands of the second product."""
        return sides((ROWS, True), (self._tilings[1].columns, self._jobs[1].right.transposed))

    @property
    def _operands(self) -> list[ProductOperand]:
        first, second = self._jobs
        return [first.left, first.right, second.right]

    def _is_early(self, operand: ProductOperand) -> bool:
        return all(map(self._early, operand.reads))

    def _depth(self) -> int:
        """Return the number of inner indices of the first product that are loaded together."""
        left, right, weights = self._sides
        floats = dynamic_floats() - self._sums - 2 * ROWS * self._stride
        floats -= weights.floats(self._jobs[1].inner)
        return fitting([left, right], self._jobs[0].inner, floats)

    @property
    def _sums(self) -> int:
        return max(each.parts * ROWS * apart(each.columns) for each in self._tilings)

    def _layout(self, start: int | None) -> SharedMemoryMap:
        """Return the layout of shared memory; sums overlap late operands, if there are any."""
        layout, depth = SharedMemoryMap(), self._depth()
        depths = (depth, depth, self._jobs[1].inner)
        for name, operand, side, deep in zip(
            ("a", "b", "weights"), self._operands, self._sides, depths, strict=True
        ):
            if name == "weights":
                layout.lay_over("sums", self._sums, early=False)
            layout.add(name, side.floats(deep), early=self._is_early(operand))
        for name in ("scores", "gradients"):
            layout.add(name, ROWS * self._stride, early=False)
        layout.end(start)
        return layout

    def _types(self) -> list[str]:
        first, second = self._jobs
        depth = self._depth()
        (rows, columns), inner = second.result.shape, second.inner
        few = first.result.shape[1]
        one, other, _ = self._sides
        left, right = (
            first.left.type_text(one, rows, depth),
            first.right.type_text(other, few, depth),
        )
        gradients = ProductOperand(self._head.works[0].writes[0], False, inner)
        down = units_of(rows, ROWS)
        weights = second.right.type_text(self._second[1], columns, inner)
        return [
            f"typedef {tiling_text(self._tilings[0], first.exact)} T;",
            f"typedef {tiling_text(self._tilings[1], second.exact)} U;",
            f"typedef {left} L;",
            f"typedef {right} R;",
            f"typedef {gradients.type_text(self._second[0], rows, inner)} S;",
            f"typedef {weights} W;",
            f"i32 first_row = unit % {down} * T::M, first_column = unit / {down} * U::N;",
        ]

    def _begin(self, layout: SharedMemoryMap, *, ahead: bool) -> list[str]:
        depth, name = self._depth(), self._places.name
        columns = ("first_row", "0", "first_column")
        depths = (depth, depth, self._jobs[1].inner)
        lines = [
            f"stage<{kind}, T::THREADS>({layout.place(place)}, {name(operand.array)}, {first}, 0, "
            f"{deep});"
            for kind, place, operand, first, deep in zip(
                "LRW", ("a", "b", "weights"), self._operands, columns, depths, strict=True
            )
            if self._is_early(operand) == ahead
        ]
        return [*self._types(), *lines] if lines else []

    def text(self, start: int | None) -> tuple[TaskText, Zones]:
        """Return the statements, and the zones of shared memory that they use."""
        layout = self._layout(start)
        first, second = self._jobs
        rows, columns = second.result.shape
        few = first.result.shape[1]
        each = (
            each_element("i", "T", "0", rows, few),
            each_element("i", "U", "first_column", rows, columns),
        )
        operands = ", ".join(self._places.name(each.array) for each in (first.left, first.right))
        # Rows beyond the last one are read as the last one.
        of_row = RowPrefetch(self._local, "_row")
        bodies = [[f"    {line}" for line in work.body(of_row)] for work in self._head.works]
        works = [line for body in bodies for line in ("{", *body, "}")]
        main = [
            *self._types(),
            *layout.checks({"a": "L::FLOATS", "b": "R::FLOATS", "weights": "W::FLOATS"}),
            *layout.checks({"scores": "S::FLOATS", "gradients": "S::FLOATS"}),
            *(
                line
                for each in "TU"
                for line in layout.checks({"sums": f"{each}::PARTS * {each}::FLOATS"})
            ),
            "i32 thread = thread_now();",
            f"i32 row = min(first_row + (thread >> 5), {rows - 1}), lane = thread & 31;",
            *of_row.statements([], ""),
            *self._held[0].statements(each[0], "T::EACH"),
            *self._held[1].statements(each[1], "U::EACH"),
            f"float* sums = {layout.place('sums')};",
            f"float* scores = {layout.place('scores')};",
            f"float* gradients = {layout.place('gradients')};",
            f"for (i32 e = thread; e < {ROWS * self._stride}; e += {THREADS})",
            "    gradients[e] = 0.0f;",
            f"block_product<T, L, R, {first.inner}>({operands}, first_row, 0,",
            f"    {layout.place('a')}, {layout.place('b')}, sums, numbers);",
            *each[0],
            "        float sum = tile_sum<T>(sums, below, across);",
            *(f"        {line}" for line in self._ends[0]),
            "    }",
            "}",
            "__syncthreads();",
            f"if (first_row + (thread >> 5) < {rows}) {{",
            *(f"    {line}" for line in works),
            "}",
            "__syncthreads();",
            "float c[U::WARP_M / 16][U::WARP_N / 8][4] = {};",
            f"warp_products<U, S, W>(c, gradients, {layout.place('weights')}, {second.inner});",
            "warp_store<U>(c, sums);",
            "__syncthreads();",
            *each[1],
            "        float sum = tile_sum<U>(sums, below, across);",
            *(f"        {line}" for line in self._ends[1]),
            "    }",
            "}",
        ]
        ahead, late = (self._begin(layout, ahead=ahead) for ahead in (True, False))
        return TaskText(main, ahead, late), layout.zones
