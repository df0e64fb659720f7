"""Kernel of packed products: rectangles of the result, band by band and panel by panel.

It follows GotoBLAS. A tile of the result stays in registers during the summation, a panel of the
right matrix in the nearest cache, and a band of the left matrix in the next cache. Bias and
activation are applied while a tile is in the nearest cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from caldera.kernels.common.product import Epilogue
from caldera.kernels.native.codegen import (
    Emitter,
    Integer,
    Pointer,
    RegisterValue,
    native_kernel,
    natural_lanes,
)
from caldera.kernels.native.product.microkernel import TileCalls
from caldera.kernels.native.product.packing import (
    RegisterTile,
    Unpacked,
    ask_ahead,
    corner_of,
    pack_panels,
    pack_strips,
    panel_of,
)
from caldera.kernels.native.product.problem import apply_epilogue, blocks_of_part


@native_kernel
def multiply_packed(
    k: Emitter,
    table: Pointer,
    a: Pointer,
    b: Pointer,
    c: Pointer,
    packed: Pointer,
    shared: Pointer | None,
    leading_a: Integer,
    leading_b: Integer,
    leading_c: Integer,
    count: Integer,
    rows: Integer,
    columns: Integer,
    height: Integer,
    width: Integer,
    depth: Integer,
    band: Integer,
    strip: Integer,
    room: Integer,
    tile_address: Integer,
    scales: list[Pointer],
    bias: Pointer | None,
    epilogue: Epilogue,
    ta: bool,
    tb: bool,
    packs_left: bool,
    tile: tuple[int, int],
) -> None:
    """Compute the rectangles of this part.

    Each row of the table is one product: offsets of its matrices, and length of its sums. `packed`
    has `room` elements for each part. `shared` is the right matrix of the only product if it is
    already packed.
    """
    alpha, beta = k.constant(1.0, c.type), k.constant(0.0, c.type)
    if scales:
        alpha, beta = (each.load(0) for each in scales)
    shape = RegisterTile(*tile, natural_lanes(c.type))
    strips = own = packed.at(k.part * room)
    if shared is None:
        strips = own.at((strip + (shape.width - 1)) // shape.width * shape.width * depth)
    with blocks_of_part(k, table, count, (rows, columns), (height, width)) as block:
        source, other, out = (each.at(block.product.load(i)) for i, each in enumerate((a, b, c)))
        # Operands multiplied by 0 are not read: they may contain NaNs.
        length = block.product.load(3)
        length = k.select(alpha.equals(0.0), 0, length) if scales else length
        area = _Rectangle(
            k,
            shape,
            _Side(source, leading_a, ta),
            _Side(other, leading_b, tb),
            (out, leading_c),
            (block.top, block.bottom),
            (block.left, block.right),
            band,
            strips if packs_left else None,
            shared is None,
            tile_address,
            lambda *tile: _finish(k, shape, leading_c, bias, epilogue, *tile),
        )
        packed_columns = None if shared is None else (shared, columns)
        area.multiply(length, depth, strip, own, packed_columns, (alpha, beta), epilogue.changes)


@dataclass(frozen=True)
class _Side:
    """A matrix on the left or on the right."""

    matrix: Pointer
    leading: RegisterValue
    flipped: bool

    def place(self, row: RegisterValue, column: RegisterValue) -> RegisterValue:
        """Return the offset of the submatrix that begins at a row and a column."""
        return corner_of(row, column, self.leading, flipped=self.flipped)


@dataclass(frozen=True)
class _Columns:
    """Columns of a rectangle and a piece of their sum, and the columns to pack next."""

    first: RegisterValue
    last: RegisterValue
    start: RegisterValue
    terms: RegisterValue
    panels: Pointer
    """Address of these columns in the packed right matrix, which may not be packed yet."""
    following: tuple[RegisterValue, RegisterValue]
    """The terms and the columns from which on there will be packed next, if there `is_more`."""
    is_more: RegisterValue
    ends: RegisterValue
    """True for the last columns."""
    alpha: RegisterValue
    keep: Callable[[], RegisterValue]
    """Factor of the previous content of the result."""
    is_finished: Callable[[], RegisterValue] | None
    """True for the last piece; None without an epilogue."""


@dataclass(frozen=True)
class _Band:
    """Rows of a rectangle that are multiplied with some columns before the next rows are."""

    first: RegisterValue
    last: RegisterValue
    is_first: RegisterValue
    is_last: RegisterValue
    lines: Pointer
    """Address of these rows in the left matrix."""
    again: RegisterValue
    """True if there are several bands: a single band stays packed."""


@dataclass(frozen=True)
class _Rectangle:
    """The steps of a rectangle of a product: band by band, panel by panel, tile by tile."""

    k: Emitter
    shape: RegisterTile
    left: _Side
    right: _Side
    out: tuple[Pointer, RegisterValue]
    rows: tuple[RegisterValue, RegisterValue]
    columns: tuple[RegisterValue, RegisterValue]
    band: RegisterValue
    strips: Pointer | None
    """Memory for a band of the left matrix, if it is packed."""
    packs_right: bool
    tile_address: RegisterValue
    finish: Callable[[Pointer, RegisterValue, RegisterValue, RegisterValue], None]

    def multiply(
        self,
        length: RegisterValue,
        depth: RegisterValue,
        strip: RegisterValue,
        own: Pointer,
        shared: tuple[Pointer, RegisterValue] | None,
        scales: tuple[RegisterValue, RegisterValue],
        changes: bool,
    ) -> None:
        """Multiply the whole rectangle, `depth` terms and `strip` columns at a time.

        Columns are packed at `own` unless all columns are packed in `shared`, a pair of their
        address and number. The epilogue is applied after the last terms if it `changes` the result.
        """
        k, (left, right), (alpha, beta) = self.k, self.columns, scales
        pieces = k.maximum((length + depth - 1) // depth, 1)
        with k.loop(0, pieces) as piece, k.loop(left, right, strip) as first:
            start = piece * depth
            terms = k.minimum(depth, length - start)
            last = k.minimum(first + strip, right)
            # Start of the piece that is packed after these columns, if the product has more pieces.
            ends = last.equals(right)
            next_start = k.select(ends, start + depth, start)
            next_column = k.select(ends, left, last)
            is_more = next_start < length
            panels = own
            if shared is not None:
                panels = panel_of(shared[0], start, terms, shared[1], self.shape.width, first)
            some = _Columns(
                first,
                last,
                start,
                terms,
                panels,
                (next_start, next_column),
                is_more,
                ends,
                alpha,
                lambda: k.select(piece.equals(0), beta, 1.0),
                (lambda: piece.equals(pieces - 1)) if changes else None,
            )
            with k.loop(*self.rows, self.band) as first_row:
                self._multiply_band(some, first_row)

    def _multiply_band(self, some: _Columns, first: RegisterValue) -> None:
        """Multiply a band of rows from `first` on by a group of columns."""
        k, shape, (top, bottom) = self.k, self.shape, self.rows
        last = k.minimum(first + self.band, bottom)
        is_first, is_last = first.equals(top), last.equals(bottom)
        lines = self.left.matrix.at(self.left.place(first, some.start))
        again = bottom - top > self.band
        if self.strips is not None:
            with k.if_then(some.first.equals(self.columns[0]) | again):
                pack_strips(
                    k,
                    self.strips,
                    lines,
                    self.left.leading,
                    some.terms,
                    last - first,
                    shape.height,
                    flipped=self.left.flipped,
                )
        band = _Band(first, last, is_first, is_last, lines, again)
        with k.loop(some.first, some.last, shape.width) as column:
            self._multiply_panel(some, band, column)

    def _multiply_panel(self, some: _Columns, band: _Band, column: RegisterValue) -> None:
        """Pack a panel of the right matrix if it is not, and multiply the band's rows with it."""
        k, left, terms = self.k, self.left, some.terms
        wide = k.minimum(some.last - column, self.shape.width)
        panel = some.panels.at((column - some.first) * terms)
        # Prefetch the next panel, which may be packed already, and the next rows.
        following = column + self.shape.width
        inside = following < some.last
        next_panel = k.either(inside, panel.at(terms * self.shape.width), some.panels)
        next_columns = None
        if self.packs_right:
            next_columns = self._pack_panel(some, band, column, wide, panel, following, inside)
        place = left.place(
            k.select(band.is_last, self.rows[0], band.last),
            k.select(band.is_last, some.following[0], some.start),
        )
        is_next = ~band.is_last | (some.is_more & (some.ends | band.again))
        next_rows = Unpacked(left.matrix.at(place), left.leading, not left.flipped, is_next)
        tiles = (band.last - band.first + (self.shape.height - 1)) // self.shape.height
        sum_up = TileCalls.of(
            k,
            self.tile_address,
            panel,
            down=1 if left.flipped else left.leading,
            right=left.leading if left.flipped else 1,
            leading=self.out[1],
            terms=terms,
            wide=wide,
            alpha=some.alpha,
            keep=some.keep(),
        )

        def ask(number: RegisterValue) -> None:
            panels = (some.last - column - 1) // self.shape.width
            upcoming = next_panel, next_columns, next_rows, panels, self.band
            ask_ahead(k, sum_up.ask, number, tiles, terms, self.shape.width, *upcoming)

        with k.loop(0, tiles) as number:
            self._sum_tile(some, band, column, wide, sum_up, number, ask)

    def _pack_panel(
        self,
        some: _Columns,
        band: _Band,
        column: RegisterValue,
        wide: RegisterValue,
        panel: Pointer,
        following: RegisterValue,
        inside: RegisterValue,
    ) -> Unpacked:
        """Pack a panel with the first band; what will be packed after it."""
        k, right = self.k, self.right
        with k.if_then(band.is_first):
            pack_panels(
                k,
                panel,
                right.matrix.at(right.place(some.start, column)),
                right.leading,
                some.terms,
                wide,
                self.shape.width,
                flipped=right.flipped,
            )
        next_start, next_column = some.following
        place = right.place(
            k.select(inside, some.start, next_start), k.select(inside, following, next_column)
        )
        is_next = k.select(inside, band.is_first, band.is_last & some.is_more)
        return Unpacked(right.matrix.at(place), right.leading, right.flipped, is_next)

    def _sum_tile(
        self,
        some: _Columns,
        band: _Band,
        column: RegisterValue,
        wide: RegisterValue,
        sum_up: TileCalls,
        number: RegisterValue,
        ask: Callable[[RegisterValue], None],
    ) -> None:
        """Sum up one tile of the result, and finish it."""
        k, (out, leading) = self.k, self.out
        row = band.first + number * self.shape.height
        goal = out.at(row * leading + column)
        high = k.minimum(band.last - row, self.shape.height)
        if self.strips is not None:
            ask(number)
            sum_up(self.strips.at((row - band.first) * some.terms), goal, at=0, high=high)
        else:
            sum_up(band.lines, goal, at=row - band.first, high=high)
        if some.is_finished is not None:
            with k.if_then(some.is_finished()):
                self.finish(goal, high, wide, column)


def _finish(
    k: Emitter,
    shape: RegisterTile,
    leading: RegisterValue,
    bias: Pointer | None,
    epilogue: Epilogue,
    tile: Pointer,
    high: RegisterValue,
    wide: RegisterValue,
    column: RegisterValue,
) -> None:
    """Apply the epilogue to a tile of the result."""
    with k.loop(0, high) as line:
        row = tile.at(line * leading)
        lanes = natural_lanes(row.type)
        # A whole row per step: each vector has a long chain of dependent instructions.
        for i, count in k.vectors(0, wide, shape.width, lanes, 1):
            row.store(i, apply_epilogue(k, epilogue, bias, row.load(i, count), column + i))
