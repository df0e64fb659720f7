"""The phases of a convolution by Fourier transforms, each one native kernel of BLAS products.

Points of tiles lie point by point; for each a real and an imaginary matrix with a row a tile.
"""

from __future__ import annotations

from llvmlite import ir

from caldera.kernels.native.codegen.blas import gemm
from caldera.kernels.native.codegen.dtypes import computed_type
from caldera.kernels.native.codegen.emitter import Emitter, Number, Pointer, Value

IMAGE = (
    "image", "image_step", "row_step", "channels", "height", "width", "top", "left", "tile_rows",
    "tile_columns", "side_rows", "side_columns",
)  # fmt: skip
"""Images in the arguments of a kernel: where the first tile begins above and left of it, how many
pixels it is to the next, and how many a tile sees."""
TRANSFORM = (
    *IMAGE, "gemm", "down", "across", "first", "end", "matrix", "other_matrix", "length", "half",
    "points", "step", "room", "room_step",
)  # fmt: skip
PRODUCT = (
    "gemm", "pairs", "tiles", "inner", "columns", "filters", "filter_step", "points", "step",
    "others", "other_step", "is_first",
)  # fmt: skip
FILTERS = ("gemm", "filters", "points", "step", "matrix", "rows", "count", "taps")


class _Slots:
    """Arguments by name."""

    def __init__(self, k: Emitter, names: tuple[str, ...], kind: str) -> None:
        self._k = k
        self._names = names
        self._kind: ir.Type = computed_type(kind)

    def number(self, name: str) -> Value:
        """An integer."""
        return self._k.integer(self._names.index(name))

    def pointer(self, name: str) -> Pointer:
        """An array."""
        return self._k.pointer(self._names.index(name), self._kind)


class _Tile:
    """The part of a tile that lies inside its image."""

    def __init__(self, k: Emitter, given: _Slots, tile: Value) -> None:
        down, across = given.number("down"), given.number("across")
        image = tile // (down * across)
        rest = tile - image * down * across
        row = rest // across
        top = row * given.number("tile_rows") - given.number("top")
        left = (rest - row * across) * given.number("tile_columns") - given.number("left")
        self.first_row, self.first_column = k.maximum(-top, 0), k.maximum(-left, 0)
        last_row = k.minimum(given.number("side_rows"), given.number("height") - top)
        last_column = k.minimum(given.number("side_columns"), given.number("width") - left)
        self.rows = k.maximum(last_row - self.first_row, 0)
        self.columns = k.maximum(last_column - self.first_column, 0)
        self.memory = given.pointer("image").at(
            image * given.number("image_step")
            + (top + self.first_row) * given.number("row_step")
            + (left + self.first_column) * given.number("channels")
        )


def spread(k: Emitter, kind: str) -> None:
    """Transform tiles of an image whose pixels lie side by side."""
    given = _Slots(k, TRANSFORM, kind)
    address, channels, length = (given.number(n) for n in ("gemm", "channels", "length"))
    twice = given.number("half") * 2
    room = given.pointer("room").at(k.part * given.number("room_step"))
    first = given.number("first")
    begin, stop = k.share(given.number("end") - first)
    with k.loop(begin, stop) as index:
        tile = _Tile(k, given, first + index)
        line = tile.columns * channels
        gemm(
            k, address, (twice, line, tile.rows),
            (given.pointer("matrix").at(tile.first_row), length),
            (tile.memory, given.number("row_step")), (room, k.maximum(line, 1)),
        )  # fmt: skip
        matrix = given.pointer("other_matrix").at(tile.first_column)
        with k.loop(0, given.number("half")) as frequency:
            place = given.pointer("points").at(
                frequency * length * 2 * given.number("step") + index * channels
            )
            for part in (0, 1):
                gemm(
                    k, address, (length * 2, channels, tile.columns),
                    (matrix.at(length * part), length * 2),
                    (room.at((frequency * 2 + part) * line), channels),
                    (place, given.number("step")), beta=float(part),
                )  # fmt: skip


def collect(k: Emitter, kind: str) -> None:
    """Transform products back to tiles of an image whose pixels lie side by side."""
    given = _Slots(k, TRANSFORM, kind)
    address, channels, length = (given.number(n) for n in ("gemm", "channels", "length"))
    twice = given.number("half") * 2
    room = given.pointer("room").at(k.part * given.number("room_step"))
    first = given.number("first")
    begin, stop = k.share(given.number("end") - first)
    with k.loop(begin, stop) as index:
        tile = _Tile(k, given, first + index)
        line = tile.columns * channels
        with k.loop(0, given.number("half")) as frequency:
            place = given.pointer("points").at(
                frequency * length * 2 * given.number("step") + index * channels
            )
            for part in (0, 1):
                gemm(
                    k, address, (tile.columns, channels, length * 2),
                    (given.pointer("other_matrix").at(length * length * 2 * part), length * 2),
                    (place, given.number("step")),
                    (room.at((frequency * 2 + part) * line), channels),
                )  # fmt: skip
        gemm(
            k, address, (tile.rows, line, twice), (given.pointer("matrix"), twice), (room, line),
            (tile.memory, given.number("row_step")),
        )  # fmt: skip


def multiply(k: Emitter, kind: str, transposed: bool) -> None:
    """Points of tiles times the conjugates of the filters' points.

    Filters lie as matrices (K, C); `transposed` reads them as (C, K).
    """
    given = _Slots(k, PRODUCT, kind)
    inner, columns = given.number("inner"), given.number("columns")
    distance = inner if transposed else columns
    with k.loop(*k.share(given.number("pairs"))) as pair:
        x, w, y = (
            _parts(given, name, step, pair)
            for name, step in (
                ("points", "step"), ("filters", "filter_step"), ("others", "other_step")
            )
        )  # fmt: skip

        def product(a: Pointer, b: Pointer, c: Pointer, alpha: float, beta: float) -> None:
            gemm(
                k, given.number("gemm"), (given.number("tiles"), columns, inner), (a, inner),
                (b, distance), (c, columns), tb=transposed, alpha=alpha, beta=beta,
            )  # fmt: skip

        product(x[0], w[0], y[0], 1.0, 0.0)
        product(x[1], w[1], y[0], 1.0, 1.0)
        product(x[1], w[0], y[1], 1.0, 0.0)
        product(x[0], w[1], y[1], -1.0, 1.0)


def add(k: Emitter, kind: str) -> None:
    """Add points of tiles times the conjugates of the gradient's points, over all tiles."""
    given = _Slots(k, PRODUCT, kind)
    inner, columns = given.number("inner"), given.number("columns")
    one = k.constant(1.0, computed_type(kind))
    keep = k.select(given.number("is_first").differs(0), k.constant(0.0, one.type), one)
    with k.loop(*k.share(given.number("pairs"))) as pair:
        x, w, y = (
            _parts(given, name, step, pair)
            for name, step in (
                ("points", "step"), ("filters", "filter_step"), ("others", "other_step")
            )
        )  # fmt: skip

        def product(a: Pointer, b: Pointer, c: Pointer, alpha: float, beta: Number) -> None:
            gemm(
                k, given.number("gemm"), (columns, inner, given.number("tiles")), (a, columns),
                (b, inner), (c, inner), ta=True, alpha=alpha, beta=beta,
            )  # fmt: skip

        product(y[0], x[0], w[0], 1.0, keep)
        product(y[1], x[1], w[0], 1.0, one)
        product(y[0], x[1], w[1], 1.0, keep)
        product(y[1], x[0], w[1], -1.0, one)


def _parts(given: _Slots, name: str, step: str, pair: Value) -> tuple[Pointer, Pointer]:
    """The real and the imaginary matrix of a frequency."""
    distance = given.number(step)
    first = given.pointer(name).at(distance * 2 * pair)
    return first, first.at(distance)


def filter_points(k: Emitter, kind: str) -> None:
    """Transform filters (count, taps)."""
    given = _Slots(k, FILTERS, kind)
    taps, step = given.number("taps"), given.number("step")
    begin, end = k.share(given.number("rows"))
    with k.when(end > begin):
        gemm(
            k, given.number("gemm"), (end - begin, given.number("count"), taps),
            (given.pointer("matrix").at(begin * taps), taps), (given.pointer("filters"), taps),
            (given.pointer("points").at(begin * step), step), tb=True,
        )  # fmt: skip


def filter_taps(k: Emitter, kind: str) -> None:
    """Transform points back to filters (count, taps)."""
    given = _Slots(k, FILTERS, kind)
    taps, step = given.number("taps"), given.number("step")
    begin, end = k.share(given.number("count"))
    with k.when(end > begin):
        gemm(
            k, given.number("gemm"), (end - begin, taps, given.number("rows")),
            (given.pointer("points").at(begin), step), (given.pointer("matrix"), taps),
            (given.pointer("filters").at(begin * taps), taps), ta=True,
        )  # fmt: skip
