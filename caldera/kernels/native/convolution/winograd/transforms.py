"""Winograd's transforms in one dimension and in two, on values in registers.

F(m, 3) computes m outputs of a filter with 3 taps by m + 2 products, `points(d) * filter(g)`, to
which `outputs` is applied. In two dimensions the transforms are applied to columns, then to rows.
The transposes of the three matrices compute the weight gradient: `gradient` is the transpose of
`outputs`, and `taps` the transpose of `filter`.

The points are 0, 1, -1 and infinity for m = 2, and additionally 2, -2 for m = 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from caldera.kernels.native.codegen import Emitter, RegisterValue

Vector = list[RegisterValue]
Transform = Callable[[Emitter, Sequence[RegisterValue]], Vector]
Store = Callable[[int, int, RegisterValue], None]
"""Function that stores a value at a row and a column."""

TAPS = 3
"""The length of the filters."""
SIZES = (2, 4)
"""Outputs that a tile has along an axis."""


def reach(size: int) -> int:
    """Return the pixels along an axis that a tile of `size` outputs sees.

    Also its number of points.

    >>> reach(2), reach(4)
    (4, 6)
    """
    return size + TAPS - 1


# --- F(2, 3)


def _points_2(k: Emitter, d: Sequence[RegisterValue]) -> Vector:
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _outputs_2(k: Emitter, p: Sequence[RegisterValue]) -> Vector:
    return [p[0] + p[1] + p[2], p[1] - p[2] - p[3]]


def _gradient_2(k: Emitter, y: Sequence[RegisterValue]) -> Vector:
    return [y[0], y[0] + y[1], y[0] - y[1], -y[1]]


def _filter_2(k: Emitter, g: Sequence[RegisterValue]) -> Vector:
    outer = g[0] + g[2]
    return [g[0], (outer + g[1]) * 0.5, (outer - g[1]) * 0.5, g[2]]


def _taps_2(k: Emitter, p: Sequence[RegisterValue]) -> Vector:
    even, odd = p[1] + p[2], p[1] - p[2]
    return [k.fma(even, 0.5, p[0]), odd * 0.5, k.fma(even, 0.5, p[3])]


# --- F(4, 3)


def _points_4(k: Emitter, d: Sequence[RegisterValue]) -> Vector:
    far_even, far_odd = k.fma(d[2], -4.0, d[4]), k.fma(d[1], -4.0, d[3])
    even, odd = d[4] - d[2], d[3] - d[1]
    return [
        k.fma(d[0], 4.0, k.fma(d[2], -5.0, d[4])),
        far_even + far_odd,
        far_even - far_odd,
        k.fma(odd, 2.0, even),
        k.fma(odd, -2.0, even),
        k.fma(d[1], 4.0, k.fma(d[3], -5.0, d[5])),
    ]


def _outputs_4(k: Emitter, p: Sequence[RegisterValue]) -> Vector:
    even, odd = p[1] + p[2], p[1] - p[2]
    far_even, far_odd = p[3] + p[4], p[3] - p[4]
    return [
        p[0] + even + far_even,
        k.fma(far_odd, 2.0, odd),
        k.fma(far_even, 4.0, even),
        k.fma(far_odd, 8.0, odd) + p[5],
    ]


def _gradient_4(k: Emitter, y: Sequence[RegisterValue]) -> Vector:
    even, odd = y[0] + y[2], y[1] + y[3]
    far_even, far_odd = k.fma(y[2], 4.0, y[0]), k.fma(y[3], 4.0, y[1])
    return [
        y[0],
        even + odd,
        even - odd,
        k.fma(far_odd, 2.0, far_even),
        k.fma(far_odd, -2.0, far_even),
        y[3],
    ]


def _filter_4(k: Emitter, g: Sequence[RegisterValue]) -> Vector:
    even, odd = (g[0] + g[2]) * (-1 / 6), g[1] * (-1 / 6)
    far_even, far_odd = k.fma(g[2], 1 / 6, g[0] * (1 / 24)), g[1] * (1 / 12)
    return [g[0] * 0.25, even + odd, even - odd, far_even + far_odd, far_even - far_odd, g[2]]


def _taps_4(k: Emitter, p: Sequence[RegisterValue]) -> Vector:
    even, odd = p[1] + p[2], p[1] - p[2]
    far_even, far_odd = p[3] + p[4], p[3] - p[4]
    return [
        k.fma(far_even, 1 / 24, k.fma(even, -1 / 6, p[0] * 0.25)),
        k.fma(odd, -1 / 6, far_odd * (1 / 12)),
        k.fma(far_even, 1 / 6, k.fma(even, -1 / 6, p[5])),
    ]


TRANSFORMS: dict[str, dict[int, Transform]] = {
    "points": {2: _points_2, 4: _points_4},
    "outputs": {2: _outputs_2, 4: _outputs_4},
    "gradient": {2: _gradient_2, 4: _gradient_4},
    "filter": {2: _filter_2, 4: _filter_4},
    "taps": {2: _taps_2, 4: _taps_4},
}
"""Transforms by the name of their result and the size of a tile.

Tiles of pixels become `points`, tiles of output gradients `gradient`, filters `filter`; products of
points become `outputs` or `taps`.
"""


def lengths(name: str, size: int) -> tuple[int, int]:
    """Return the numbers of inputs and of outputs of a transform along an axis.

    >>> lengths("points", 4), lengths("outputs", 4), lengths("taps", 2)
    ((6, 6), (6, 4), (4, 3))
    """
    points = reach(size)
    return {
        "points": (points, points),
        "outputs": (points, size),
        "gradient": (size, points),
        "filter": (TAPS, points),
        "taps": (points, TAPS),
    }[name]


def in_two_dimensions(
    k: Emitter,
    name: str,
    size: int,
    load: Callable[[int, int], RegisterValue],
    store: Store,
) -> None:
    """Transform the values of `load(row, column)`; call `store(row, column, value)`."""
    taken, _ = lengths(name, size)
    transform = TRANSFORMS[name][size]
    columns = [transform(k, [load(row, column) for row in range(taken)]) for column in range(taken)]
    transform_rows(k, name, size, columns, store)


def transform_rows(
    k: Emitter, name: str, size: int, columns: Sequence[Vector], store: Store
) -> None:
    """Compute the second half of a transform, from (some rows of) transformed columns."""
    for row in range(len(columns[0])):
        results = TRANSFORMS[name][size](k, [column[row] for column in columns])
        for column, value in enumerate(results):
            store(row, column, value)
