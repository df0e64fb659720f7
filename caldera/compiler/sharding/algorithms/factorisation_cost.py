"""What factorisations by panels on a grid of ranks cost."""

from __future__ import annotations

from caldera.comm.algorithms.shared_post import post_bytes
from caldera.compiler.sharding.algorithms.cost import Cost
from caldera.compiler.sharding.algorithms.matrix import factorisation_grid
from caldera.core.graph.node import Node

Size = tuple[int, int]
PANELS = {
    "cholesky": ("cholesky", 1.7, 1.0),
    "slogdet": ("solve", 7.3, 0.45),
    "solve": ("solve", 7.3, 1.0),
    "inverse": ("solve", 7.3, 1.0),
}
QR_PANELS = ("qr", 7, 1.0)
"""What a panel takes: whose messages and calls, as they are measured; as many operations for each
of its elements and columns, for they are much slower than those of products; and how often those
messages and calls. Others begin with a QR."""
AVERAGING = 21
"""How often what Cholesky does for each element of a matrix, most of it to make it symmetric, takes
as long as to read it: it goes through memory the other way round."""


def shape_of(node: Node) -> Size:
    """That of the matrix a node is given."""
    m, n = node.inputs[0].shape
    return m, n


def grid_cost(node: Node, ranks: int, block: int) -> Cost:
    """Panels of half a matrix along rows and columns of the grid, for each input; and what the
    panels themselves take, which one column of the grid has to do while the others wait."""
    rows, columns = factorisation_grid(ranks)
    elements = sum(each.spec.size for each in node.inputs)
    (m, n), itemsize = node.inputs[0].shape, node.inputs[0].dtype.itemsize
    k = min(m, n)
    like, slower, calls = PANELS.get(node.op.name, QR_PANELS)
    work = Cost(
        # Even where ranks of a column share a panel, the others wait as long as for all of it.
        flops=int(slower * m * k * block) + node.op.count_flops(node) // ranks,
        copied=int(_updated(node) / block + elements * AVERAGING * (like == "cholesky"))
        * itemsize
        // ranks,
        panels=((like, calls * -(-k // block)),),
    )
    if ranks == 1:
        return work
    if like == "qr":
        # Panels gathered down a column and sent along rows, and sums of products with them, once
        # for R and once for Q.
        reflections = (m - k / 2 + block / 2) * (rows + columns - 2) / rows
        sums = 2 * (rows - 1) / rows * n
        sent = (reflections + block * (columns - 1) + sums) * k / columns
        return work + Cost(int(sent * itemsize))
    if like == "solve":
        return work + _lu_bytes(n, _right_sides(node), (rows, columns), itemsize)
    # A column of the grid sends its panel to the others, who wait for it; then the next one does.
    panels = n * n * (rows + columns - 2) / (2 * rows)
    averaging = n * n * (ranks - 1) / (2 * ranks * ranks)
    sent = panels / columns + averaging
    others = panels - panels / columns
    read = n * n / 2 * (1 / rows + 1 / columns)
    is_left = n * n / ranks + 3 * block * n / rows <= post_bytes(ranks) / itemsize
    return work + Cost(
        int(sent * itemsize),
        awaited=int(others * itemsize),
        copied=int(read * itemsize),
        posted=int((sent + others) * itemsize) if is_left else 0,
    )


def _lu_bytes(n: int, sides: int, grid: Size, itemsize: int) -> Cost:
    """Of L and U along the rows of the grid, for the factors and for both triangles that are solved
    with; of U and twice the solution down its columns; panels that are gathered, and rows that
    change places. Who is not in the column of a panel of L waits for it."""
    rows, columns = grid
    along, solved = n * n * (columns - 1) / 2, bool(sides)
    down = n * (n + 2 * sides) * (rows - 1)
    places = 2 * n * (n + sides) * (rows - 1) / rows
    sent = (along * (1 + 2 * solved) + down + places) / (rows * columns)
    return Cost(
        int(sent * itemsize), awaited=int(along * (columns - 1) / (rows * columns) * itemsize)
    )


def _right_sides(node: Node) -> int:
    """How many are solved with."""
    return {"solve": node.inputs[-1].shape[-1], "inverse": shape_of(node)[1]}.get(node.op.name, 0)


def _updated(node: Node) -> float:
    """How many elements all panels of one column together read and write of what lies behind
    them, of which the products with a narrow panel are made."""
    m, n = shape_of(node)
    k = min(m, n)
    if node.op.name == "cholesky":
        return n**3 / 3
    if node.op.name in ("solve", "inverse", "slogdet"):
        return 2 * (n**3 / 3 + n * n * _right_sides(node))
    # Read twice and written once, for R and for Q.
    return 3 * sum(m * c * k - (m + c) * k * k / 2 + k**3 / 3 for c in (n, k))


def tsqr_cost(node: Node, ranks: int) -> Cost:
    """Of a rank's own rows, and of triangles up the tree and down again."""
    (m, n), levels = shape_of(node), (ranks - 1).bit_length()
    triangle = n * n * node.inputs[0].dtype.itemsize
    # LAPACK is slower than products, the more so the fewer columns there are.
    slower = 2.4 + 100 / max(n, 1)
    # Up the tree fewer and fewer ranks compute, each a little faster for it.
    flops = int(slower * (4 * (m // ranks) * n * n + levels * 7 * n**3))
    return Cost(2 * levels * triangle, 3 * levels, flops, overhead=levels * 1e-4)
