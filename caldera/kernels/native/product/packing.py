"""Blocking, packing and prefetching of matrix products.

Blocking sets tiles for registers, blocks for caches and rectangles for threads. Packing stores
matrices in the order in which a micro-kernel reads them: panels as wide as a tile of the right
matrix, row by row, and strips as high as a tile of the left matrix, column by column.

A tile prefetches one cache line with every second term. More would displace its own loads: a core
has about a dozen in flight. The first tiles of a panel prefetch the next panel; later tiles
prefetch rows of the left matrix if rows will be packed next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from caldera.kernels.native.codegen import (
    I64,
    Emitter,
    Integer,
    Number,
    Pointer,
    RegisterValue,
    computed_type,
    copy_elements,
    host_target,
    line_lanes,
    native_kernel,
    natural_lanes,
)
from caldera.kernels.native.movement import transposed

DEEPEST = 512
"""Number of terms summed before the result is updated.

A panel of this number of rows stays in the second-level cache, and one update of the result costs
little compared with these terms.
"""
CACHED_ELEMENTS = 1 << 16
"""Elements of the left matrix that are used again and again: half of a cache of second level."""
WIDEST = 1536
"""Number of columns of the right matrix that are packed together."""
WORTH_PACKING = 2
"""Number of panels that must read a strip of the left matrix for packing it to pay."""
_PACKING = 8.0
"""Cost of packing a vector, in multiplied vectors: most is time spent waiting for memory."""


@dataclass(frozen=True)
class RegisterTile:
    """The part of the result that is kept in registers: rows, and vectors of columns."""

    height: int
    vectors: int
    lanes: int

    @property
    def width(self) -> int:
        """Columns."""
        return self.vectors * self.lanes


def tile_of(dtype: str) -> RegisterTile:
    """The tile for this machine: its sums, a row of vectors and one more fill the registers."""
    height = 8 if host_target().registers >= 32 else 4
    return RegisterTile(height, 3, natural_lanes(computed_type(dtype)))


@dataclass(frozen=True)
class Blocking:
    """Sizes of the blocks of a product.

    `height` rows and `width` columns of the result are one task of a thread. Sums are computed in
    pieces of `depth` terms, for `band` rows of the left matrix and `strip` columns of the right one
    at a time. `packs_left` is True if the left matrix is packed as well.
    """

    height: int
    width: int
    depth: int
    band: int
    strip: int
    packs_left: bool

    def left_elements(self, tile: RegisterTile) -> int:
        """Return the number of elements that each thread needs to pack the left matrix."""
        left = self.band * self.depth if self.packs_left else 0
        # The memory of the next thread starts at a cache line, as vectors should.
        return _up(left, tile.lanes)

    def elements(self, tile: RegisterTile) -> int:
        """Return the number of elements that each thread needs to pack both matrices."""
        return self.depth * _up(self.strip, tile.width) + self.left_elements(tile)


def shared_elements(columns: int, length: int, tile: RegisterTile) -> int:
    """Return elements of memory for the right matrix, packed by all threads together."""
    return length * _up(columns, tile.width)


def blocking_of(
    count: int,
    rows: int,
    columns: int,
    length: int,
    parts: int,
    tile: RegisterTile,
    *,
    shares_panels: bool = False,
) -> Blocking:
    """Return the blocking for `count` products of this extent in `parts` parts.

    If threads pack the right matrix together, each rectangle starts at a panel boundary.
    """
    # An empty result would have no rectangles. The blocking of a single row and column has no work.
    count, rows, columns = (max(1, each) for each in (count, rows, columns))
    shapes = _rectangles(rows, columns, parts, tile)
    if shares_panels:
        shapes = {(down, right) for down, right in shapes if not right % tile.width}
    height, width = min(
        sorted(shapes),
        key=lambda shape: _cost(count, rows, columns, shape, parts, tile, shared=shares_panels),
    )
    pieces = max(1, -(-length // DEEPEST))
    depth = max(1, -(-length // pieces))
    band = max(tile.height, CACHED_ELEMENTS // depth // tile.height * tile.height)
    band = min(band, _up(height, tile.height))
    packs_left = width >= WORTH_PACKING * tile.width
    # The next panel can be prefetched while one is multiplied. With several bands, panels would
    # have to be packed again for each band.
    strip = tile.width if height <= band else WIDEST
    return Blocking(height, width, depth, band, min(_up(width, tile.width), strip), packs_left)


def _rectangles(rows: int, columns: int, parts: int, tile: RegisterTile) -> set[tuple[int, int]]:
    """Return rectangles that divide a result into whole tiles or half tiles, as far as possible."""
    found = set()
    for down in range(1, parts + 1):
        for across in {1, *range(parts // down, parts // (down + 1), -1)}:
            height, width = -(-rows // down), -(-columns // across)
            found.add((_up(height, max(1, tile.height // 2)), _up(width, tile.lanes)))
            found.add((_up(height, tile.height), _up(width, tile.width)))
    return found


def _cost(
    count: int,
    rows: int,
    columns: int,
    shape: tuple[int, int],
    parts: int,
    tile: RegisterTile,
    *,
    shared: bool,
) -> float:
    """Return the cost per term: vectors that the busiest thread multiplies and packs."""
    height, width = shape
    tasks = count * -(-rows // height) * -(-columns // width)
    vectors = -(-min(width, _up(columns, tile.lanes)) // tile.lanes)
    lines = min(height, rows)
    each = _up(lines, max(1, tile.height // 2)) * vectors
    packed = lines / tile.lanes + (0 if shared else vectors)
    return -(-tasks // parts) * (each + _PACKING * packed)


def _up(length: int, grain: int) -> int:
    return -(-length // grain) * grain


_GRAIN = 16
"""Number of rows that a thread packs per task.

It equals the lanes of the widest vector, and is small enough that there are tasks for all threads.
"""


def pack_panels(
    k: Emitter,
    target: Pointer,
    source: Pointer,
    leading: RegisterValue,
    length: RegisterValue,
    columns: RegisterValue,
    width: int,
    *,
    flipped: bool,
    height: RegisterValue | None = None,
) -> None:
    """Pack `length` rows and `columns` columns of a matrix in panels of `width` columns.

    `flipped` means that columns are dense, not rows. `height` is the number of rows of the panels,
    if only some rows are packed. The last panel is padded with zeros, or with existing columns.
    Results of the padding are never read, but arbitrary numbers left in memory could be very slow
    to multiply.
    """
    whole = columns // width * width
    height = length if height is None else height
    if flipped:
        with k.loop(0, whole, width) as column:
            panel = target.at(column * height)
            _pack_flipped(k, panel, source.at(column * leading), leading, length, width, width)
    else:
        _pack_rows(k, target, source, leading, length, whole, width, height)
    rest = columns - whole
    with k.if_then(rest > 0):
        panel = target.at(whole * height)
        if flipped:
            _pack_flipped(k, panel, source.at(whole * leading), leading, length, width, rest)
        else:
            _pack_some(k, panel, source.at(whole), leading, length, width, rest)


def pack_strips(
    k: Emitter,
    target: Pointer,
    source: Pointer,
    leading: RegisterValue,
    length: RegisterValue,
    rows: RegisterValue,
    height: int,
    *,
    flipped: bool,
) -> None:
    """Pack `rows` x `length` elements in strips: `pack_panels` of the transposed matrix."""
    pack_panels(k, target, source, leading, length, rows, height, flipped=not flipped)


def _pack_rows(
    k: Emitter,
    target: Pointer,
    source: Pointer,
    leading: RegisterValue,
    length: RegisterValue,
    columns: RegisterValue,
    width: int,
    height: RegisterValue,
) -> None:
    """Pack panels from a matrix with dense rows.

    Each row of the matrix is read to its end: the hardware prefetches sequential reads from far
    caches.
    """
    lanes = min(natural_lanes(target.type), width)
    with k.loop(0, length) as row, k.loop(0, columns, width) as column:
        line, goal = source.at(row * leading + column), target.at(column * height + row * width)
        for i in range(0, width, lanes):
            goal.store(i, line.load(i, lanes))


def _pack_some(
    k: Emitter,
    panel: Pointer,
    source: Pointer,
    leading: RegisterValue,
    length: RegisterValue,
    width: int,
    columns: RegisterValue,
) -> None:
    """Pack a panel with fewer columns than its width."""
    lanes = min(natural_lanes(panel.type), width)
    end = (columns + (lanes - 1)) // lanes * lanes
    with k.loop(0, length) as row:
        line, start = panel.at(row * width), source.at(row * leading)
        copy_elements(k, line, start, columns, lanes)
        with k.loop(columns, end) as i:
            line.store(i, k.constant(0.0, panel.type))


def _pack_flipped(
    k: Emitter,
    panel: Pointer,
    source: Pointer,
    leading: RegisterValue,
    length: RegisterValue,
    width: int,
    columns: Number,
) -> None:
    """A panel whose columns are dense in the matrix: square blocks change sides in registers.

    Blocks at the end repeat the last column.
    """
    lanes = min(natural_lanes(panel.type), width)
    last = k.constant(columns, I64) - 1
    whole = length // lanes * lanes
    with k.loop(0, columns, lanes) as column:
        lines = [source.at(k.minimum(column + i, last) * leading) for i in range(lanes)]
        with k.loop(0, whole, lanes) as row:
            block = [line.load(row, lanes) for line in lines]
            goal = panel.at(row * width + column)
            for i, line in enumerate(transposed(k, block)):
                goal.store(i * width, line)
        with k.loop(whole, length) as row:
            panel.store(row * width + column, k.vector_of([line.load(row) for line in lines]))


# --- a whole matrix, by all threads


@native_kernel
def pack_together(
    k: Emitter,
    table: Pointer,
    b: Pointer,
    shared: Pointer,
    leading: Integer,
    columns: Integer,
    length: Integer,
    depth: Integer,
    tb: bool,
    width: int,
) -> None:
    """Pack the right matrix of the only product in panels of `width` columns.

    The pieces of the sum are packed in order. A task is a few rows: of a single panel if columns
    are dense, otherwise of all panels, because the hardware prefetches sequential reads from far
    caches.
    """
    matrix = b.at(table.load(1))
    span = k.constant(width, I64) if tb else columns
    across = (columns + (span - 1)) // span
    grains = (depth + (_GRAIN - 1)) // _GRAIN
    with k.loop(*k.part_range((length + depth - 1) // depth * grains * across)) as task:
        column, first = task % across * span, task // across % grains * _GRAIN
        start = task // (across * grains) * depth
        terms = k.minimum(depth, length - start)
        panel = panel_of(shared, start, terms, columns, width, column)
        with k.if_then(first < terms):
            pack_panels(
                k,
                panel.at(first * width),
                matrix.at(corner_of(start + first, column, leading, flipped=tb)),
                leading,
                k.minimum(terms - first, _GRAIN),
                k.minimum(columns - column, span),
                width,
                flipped=tb,
                height=terms,
            )


def panel_of(
    shared: Pointer,
    start: RegisterValue,
    terms: RegisterValue,
    columns: RegisterValue,
    width: int,
    column: RegisterValue,
) -> Pointer:
    """Return the address of the panel with this column, in the piece of sums that begins at
    `start`.
    """
    return shared.at(start * ((columns + (width - 1)) // width * width) + column * terms)


def corner_of(
    row: RegisterValue, column: RegisterValue, leading: RegisterValue, *, flipped: bool
) -> RegisterValue:
    """Return the offset of the submatrix that begins at a row and a column."""
    return column * leading + row if flipped else row * leading + column


TERMS = 2
"""Terms of a sum per prefetched cache line."""


@dataclass(frozen=True)
class Lines:
    """Groups of cache lines: strides of `step` elements in a group and `jump` between groups."""

    first: Pointer
    step: RegisterValue
    jump: RegisterValue


def group_of(pointer: Pointer) -> int:
    """Return the number of lines in a group, which a tile prefetches while it reads a line of
    terms.
    """
    return line_lanes(pointer.type) // TERMS


@dataclass(frozen=True)
class Unpacked:
    """Columns of a matrix to pack next, if `is_next`; `corner` is the first element.

    `flipped` means that columns are dense, not rows.
    """

    corner: Pointer
    leading: RegisterValue
    flipped: bool
    is_next: RegisterValue

    def lines(self, k: Emitter, share: RegisterValue, terms: RegisterValue) -> Lines:
        """Return the share with this number, of `terms` rows."""
        line, group = line_lanes(self.corner.type), group_of(self.corner)
        if self.flipped:
            first = self.corner.at(share * group * self.leading)
            return Lines(first, self.leading, k.constant(line, I64))
        half, column = (share & 1) * (terms // TERMS), (share >> 1) * line
        return Lines(
            self.corner.at(half * self.leading + column), self.leading, self.leading * group
        )


def ask_ahead(
    k: Emitter,
    ask: Callable[[Lines], None],
    number: RegisterValue,
    tiles: RegisterValue,
    terms: RegisterValue,
    width: int,
    packed: Pointer,
    panel: Unpacked | None,
    rows: Unpacked,
    panels: RegisterValue,
    band: RegisterValue,
) -> None:
    """Prefetch the lines assigned to tile number `number` of the `tiles` of a panel.

    The next panel is `packed`, or else the `width` columns at `panel`. The next `band` rows to pack
    are prefetched late, by the tiles of the last panels (`panels` more panels follow), because they
    displace cached data. The code branches instead of selecting: short sums leave no time to
    compute addresses that are not used.
    """
    line, group = line_lanes(packed.type), group_of(packed)
    most = TERMS * -(-width // line)

    def ask_packed() -> None:
        first = packed.at(number * (terms // TERMS) * line)
        ask(Lines(first, k.constant(line, I64), k.constant(line * group, I64)))

    with k.if_else(number < most) as (early, late):
        with early:
            if panel is None:
                ask_packed()
            else:
                with k.if_else(panel.is_next) as (is_unpacked, is_packed):
                    with is_unpacked:
                        ask(panel.lines(k, number, terms))
                    with is_packed:
                        ask_packed()
        with late:
            share = number - most + panels * (tiles - most)
            with k.if_else(rows.is_next & (share * group < band)) as (some, nothing):
                with some:
                    ask(rows.lines(k, share, terms))
                with nothing:
                    zero = k.constant(0, I64)
                    ask(Lines(packed, zero, zero))
