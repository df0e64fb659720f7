"""How a packed product is cut: tiles for registers, blocks for caches, rectangles for threads."""

from __future__ import annotations

from dataclasses import dataclass

from caldera.kernels.native.codegen.dtypes import computed_type
from caldera.kernels.native.codegen.emitter import natural_lanes
from caldera.kernels.native.codegen.target import host_target

DEEPEST = 512
"""Terms of a sum between two visits of the result: a panel of so many rows stays in the cache of
second level, and a visit is little beside them."""
CACHED_ELEMENTS = 1 << 16
"""Elements of the left matrix that are used again and again: half of a cache of second level."""
WIDEST = 1536
"""Columns of the right matrix that are packed at once."""
WORTH_PACKING = 2
"""How many panels must read a strip of the left matrix for packing it to pay."""
_PACKING = 8.0
"""What it costs to pack a vector, in vectors multiplied: most of it is waiting for memory."""


@dataclass(frozen=True)
class Tile:
    """The part of the result that is kept in registers: rows, and vectors of columns."""

    height: int
    vectors: int
    lanes: int

    @property
    def width(self) -> int:
        """Columns."""
        return self.vectors * self.lanes


def tile_of(dtype: str) -> Tile:
    """The tile for this machine: its sums, a row of vectors and one more fill the registers."""
    height = 8 if host_target().registers >= 32 else 4
    return Tile(height, 3, natural_lanes(computed_type(dtype)))


@dataclass(frozen=True)
class Blocking:
    """`height` rows and `width` columns of the result are one thread's task. Sums are taken in
    pieces of `depth` terms, for `band` rows of the left matrix and `strip` columns of the right
    one at a time. `packs_left` says whether the left matrix is packed as well."""

    height: int
    width: int
    depth: int
    band: int
    strip: int
    packs_left: bool

    def left_elements(self, tile: Tile) -> int:
        """Elements of memory that each thread needs for what it packs of the left matrix."""
        left = self.band * self.depth if self.packs_left else 0
        # What the next thread packs begins at a line of the cache, as vectors should.
        return _up(left, tile.lanes)

    def elements(self, tile: Tile) -> int:
        """The same with what it packs of the right matrix."""
        return self.depth * _up(self.strip, tile.width) + self.left_elements(tile)


def shared_elements(columns: int, length: int, tile: Tile) -> int:
    """Elements of memory for the right matrix, packed by all threads together."""
    return length * _up(columns, tile.width)


def blocking_of(
    count: int,
    rows: int,
    columns: int,
    length: int,
    parts: int,
    tile: Tile,
    *,
    shares_panels: bool = False,
) -> Blocking:
    """For `count` products of this extent on so many threads, which may have packed the right
    matrix together: then each rectangle begins with a panel."""
    # Of nothing there are no rectangles, and no work for those of a row and a column.
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
    # Panel by panel the next one can be fetched meanwhile; other bands would have to be packed
    # again for each of them.
    strip = tile.width if height <= band else WIDEST
    return Blocking(height, width, depth, band, min(_up(width, tile.width), strip), packs_left)


def _rectangles(rows: int, columns: int, parts: int, tile: Tile) -> set[tuple[int, int]]:
    """Rectangles of a result that are whole tiles, or halves of them, as far as possible."""
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
    tile: Tile,
    *,
    shared: bool,
) -> float:
    """Vectors that the busiest thread multiplies for each term of the sums, with what it packs."""
    height, width = shape
    tasks = count * -(-rows // height) * -(-columns // width)
    vectors = -(-min(width, _up(columns, tile.lanes)) // tile.lanes)
    lines = min(height, rows)
    each = _up(lines, max(1, tile.height // 2)) * vectors
    packed = lines / tile.lanes + (0 if shared else vectors)
    return -(-tasks // parts) * (each + _PACKING * packed)


def _up(length: int, grain: int) -> int:
    return -(-length // grain) * grain
