"""Parts of matrices in the order in which a micro-kernel reads them.

The right matrix becomes panels: as many columns as a tile is wide, row after row. The left matrix
becomes strips: as many rows as a tile is high, column after column. Every element is then read
from the cache line after the last one, however far apart the rows of the matrix lie.
"""

from __future__ import annotations

from caldera.kernels.native.codegen.emitter import (
    I64,
    Emitter,
    Number,
    Pointer,
    Value,
    natural_lanes,
)
from caldera.kernels.native.codegen.kernel import Integer, native_kernel
from caldera.kernels.native.movement import transposed

_GRAIN = 16
"""Rows that a thread packs at once: as many as the widest vector has lanes, and few enough that
there are tasks for all threads."""


def pack_panels(
    k: Emitter,
    target: Pointer,
    source: Pointer,
    leading: Value,
    length: Value,
    columns: Value,
    width: int,
    *,
    flipped: bool,
    height: Value | None = None,
) -> None:
    """`columns` columns of a matrix, `length` rows of it, in panels of `width` columns.

    `flipped` says that the columns are dense, not the rows; `height` is how many rows the panels
    have, if these are only some of them. The last panel is filled up with zeros, or with columns
    that are there already: nobody reads what comes of them, but numbers left from something else
    may take very long to multiply.
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
    leading: Value,
    length: Value,
    rows: Value,
    height: int,
    *,
    flipped: bool,
) -> None:
    """`rows` rows of a matrix, `length` columns of it, in strips of `height` rows.

    That is what `pack_panels` does with the matrix transposed.
    """
    pack_panels(k, target, source, leading, length, rows, height, flipped=not flipped)


def _pack_rows(
    k: Emitter,
    target: Pointer,
    source: Pointer,
    leading: Value,
    length: Value,
    columns: Value,
    width: int,
    height: Value,
) -> None:
    """Panels whose rows lie in the matrix as they do here. Each row of it is read to its end: what
    is read in order comes from far caches ahead of time."""
    lanes = min(natural_lanes(target.type), width)
    with k.loop(0, length) as row, k.loop(0, columns, width) as column:
        line, goal = source.at(row * leading + column), target.at(column * height + row * width)
        for i in range(0, width, lanes):
            goal.store(i, line.load(i, lanes))


def _pack_some(
    k: Emitter,
    panel: Pointer,
    source: Pointer,
    leading: Value,
    length: Value,
    width: int,
    columns: Value,
) -> None:
    """The same for fewer columns than a panel has."""
    lanes = min(natural_lanes(panel.type), width)
    end = (columns + (lanes - 1)) // lanes * lanes
    with k.loop(0, length) as row:
        line, start = panel.at(row * width), source.at(row * leading)
        k.vector_loop(0, columns, lanes, lambda i, n: line.store(i, start.load(i, n)))
        with k.loop(columns, end) as i:
            line.store(i, k.constant(0.0, panel.type))


def _pack_flipped(
    k: Emitter,
    panel: Pointer,
    source: Pointer,
    leading: Value,
    length: Value,
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
    """The right matrix of the only product, in panels of so many columns, piece of the sum by
    piece: a few rows at a time are one part's, of a panel if they lie apart in the matrix, else of
    all panels: what is read in order comes from far caches ahead of time."""
    matrix = b.at(table.load(1))
    span = k.constant(width, I64) if tb else columns
    across = (columns + (span - 1)) // span
    grains = (depth + (_GRAIN - 1)) // _GRAIN
    begin, end = k.part_range((length + depth - 1) // depth * grains * across)
    with k.loop(begin, end) as task:
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
    shared: Pointer, start: Value, terms: Value, columns: Value, width: int, column: Value
) -> Pointer:
    """Where the panel begins that has this column, of the piece of sums that starts there."""
    return shared.at(start * ((columns + (width - 1)) // width * width) + column * terms)


def corner_of(row: Value, column: Value, leading: Value, *, flipped: bool) -> Value:
    """Where the rest of a matrix begins."""
    return column * leading + row if flipped else row * leading + column
