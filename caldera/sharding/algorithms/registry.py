"""Which algorithm computes an op of whole values on ranks: the one table.

`sharding.propagation` asks it for the variants there are, brings the inputs to where one of them
wants them, and writes an `spmd` node, whose kernel runs the algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from caldera.comm import Communicator
from caldera.graph.node import Node
from caldera.kernels.reference.linalg import named
from caldera.sharding import ops
from caldera.sharding.algorithms import lu
from caldera.sharding.algorithms.axis_variants import CUMSUM, FFT, ORDERED_SUM, SORT, TOP_K
from caldera.sharding.algorithms.cholesky import cholesky
from caldera.sharding.algorithms.cost import Cost
from caldera.sharding.algorithms.matrix import (
    BLOCK,
    Matrix,
    block_size,
    factorisation_grid,
    grid_of,
    is_tall,
    qr,
    qr_layouts,
)
from caldera.sharding.algorithms.process_grid import even_cuts
from caldera.sharding.algorithms.product_variants import MATMUL
from caldera.sharding.algorithms.subspace import largest_singular
from caldera.sharding.algorithms.svd import TALL, bidiagonal_svd, dealt_columns, eigh, svd
from caldera.sharding.algorithms.variant import (
    Algorithm,
    Options,
    Variant,
    columns_layout,
    cyclic_layout,
    rows_layout,
)
from caldera.sharding.layout import Layout, replicated

Parts = Sequence[np.ndarray]
Layouts = Sequence[Layout]
Size = tuple[int, int]
TOGETHER, ALIKE, BIDIAGONAL = "together", "alike", "bidiagonal"
PANELS = {
    "cholesky": ("cholesky", 1.7, 1.0), "slogdet": ("solve", 7.3, 0.45),
    "solve": ("solve", 7.3, 1.0), "inverse": ("solve", 7.3, 1.0),
}  # fmt: skip
QR_PANELS = ("qr", 7, 1.0)
"""What a panel takes: whose messages and calls, as they are measured; as many operations for each
of its elements and columns, for they are much slower than those of products; and how often those
messages and calls. Others begin with a QR."""
AVERAGING = 21
"""How often what Cholesky does for each element of a matrix, most of it to make it symmetric, takes
as long as to read it: it goes through memory the other way round."""
WHOLE_PANELS = ("solve", "inverse", "slogdet", "qr")
"""What factorises panels on all ranks of a column alike."""
BLOCKS = (32, 64, 128, 256)
"""How wide panels may be: wide ones are fewer, narrow ones are sooner done."""
SPECTRAL = {"svd": (27, 200), "eigh": (10, 330)}
"""Operations of LAPACK for the square of a size times the size and some more, at the speed of
products."""
SWEEPS, ROTATING, MEETING_S = 6, 300, 2e-3
"""Of block Jacobi: sweeps, operations for the cube of the size, and seconds for two blocks that
meet."""
DIVIDING = 8
"""Operations for the cube of the size of a bidiagonal matrix, at the speed of products."""
LOCAL_BYTES = 32 << 20
"""What LAPACK may be given on every rank: a bounded buffer, whatever the size of the array."""


def _matrices(
    layouts: Callable[[Node, int, int], tuple[Layouts, Layouts]], name: str
) -> Callable[[Node, Layouts, int], list[Variant]]:
    """An op on matrices, by panels of several widths; batches of them are no business of
    algorithms. `options` are the width."""

    def variants(node: Node, given: Layouts, ranks: int) -> list[Variant]:
        if any(len(each.shape) != 2 for each in node.inputs):
            return []
        if node.op.name == "qr" and is_tall(_shape(node), ranks):
            inputs, outputs = layouts(node, ranks, BLOCK)
            return [
                Variant("TSQR", tuple(inputs), tuple(outputs), _tsqr_cost(node, ranks), (BLOCK,))
            ]
        found = {}
        for widest in BLOCKS:
            inputs, outputs = layouts(node, ranks, widest)
            block = block_size(min(node.inputs[0].shape), ranks, widest)
            cost = _grid_cost(node, ranks, block)
            title = f"{name}, blocks of {block}"
            # Small matrices have narrow panels whatever is wished.
            found[block] = Variant(title, tuple(inputs), tuple(outputs), cost, (block,))
        return list(found.values())

    return variants


def _cyclic(node: Node, ranks: int, widest: int) -> list[Layout]:
    """All inputs block-cyclic with the block of the first."""
    block, grid = block_size(node.inputs[0].shape[0], ranks, widest), factorisation_grid(ranks)
    return [cyclic_layout((m, n), block, grid) for m, n in (each.shape for each in node.inputs)]


def _grid_cost(node: Node, ranks: int, block: int) -> Cost:
    """Panels of half a matrix along rows and columns of the grid, for each input; and what the
    panels themselves take, which one column of the grid has to do while the others wait."""
    rows, columns = factorisation_grid(ranks)
    elements = sum(each.spec.size for each in node.inputs)
    (m, n), itemsize = node.inputs[0].shape, node.inputs[0].dtype.itemsize
    k = min(m, n)
    like, slower, calls = PANELS.get(node.op.name, QR_PANELS)
    shared = 1 if node.op.name in WHOLE_PANELS else rows
    work = Cost(
        flops=int(slower * m * k * block) // shared + node.op.count_flops(node) // ranks,
        copied=int(_updated(node) / block + elements * AVERAGING * (like == "cholesky"))
        * itemsize // ranks,
        panels=((like, calls * -(-k // block)),),
    )  # fmt: skip
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
    return work + Cost(int(sent * itemsize), awaited=int((panels - panels / columns) * itemsize))


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
    return {"solve": node.inputs[-1].shape[-1], "inverse": _shape(node)[1]}.get(node.op.name, 0)


def _updated(node: Node) -> float:
    """How many elements all panels of one column together read and write of what lies behind
    them, of which the products with a narrow panel are made."""
    m, n = _shape(node)
    k = min(m, n)
    if node.op.name == "cholesky":
        return n**3 / 3
    if node.op.name in ("solve", "inverse", "slogdet"):
        return 2 * (n**3 / 3 + n * n * _right_sides(node))
    # Read twice and written once, for R and for Q.
    return 3 * sum(m * c * k - (m + c) * k * k / 2 + k**3 / 3 for c in (n, k))


def _tsqr_cost(node: Node, ranks: int) -> Cost:
    """Of a rank's own rows, and of triangles up the tree and down again."""
    (m, n), levels = _shape(node), (ranks - 1).bit_length()
    triangle = n * n * node.inputs[0].dtype.itemsize
    # LAPACK has a quarter of the speed of products for columns that are few.
    flops = 4 * (4 * (m // ranks) * n * n + levels * 10 * n**3)
    return Cost(2 * levels * triangle, 3 * levels, flops, overhead=levels * 1e-4)


# --- one function for each op


def _run_cholesky(
    parts: Parts, inputs: Layouts, outputs: Layouts, options: Options, comm: Communicator
) -> Parts:
    return [cholesky(parts[0], inputs[0].shape[0], options[0], grid_of(comm), average=True)]


def _run_solve(
    parts: Parts, inputs: Layouts, outputs: Layouts, options: Options, comm: Communicator
) -> Parts:
    n, columns = inputs[1].shape
    block, grid = options[0], grid_of(comm)
    factors, order = lu.lu(parts[0], n, block, grid)
    lu.check_invertible(factors, n, block, grid)
    return [lu.solve_lu(factors, order, parts[1], columns, block, grid)]


def _run_inverse(
    parts: Parts, inputs: Layouts, outputs: Layouts, options: Options, comm: Communicator
) -> Parts:
    n = inputs[0].shape[0]
    where = lu.Cyclic((n, n), options[0], grid_of(comm))
    identity = (where.rows[:, None] == where.columns).astype(parts[0].dtype)
    return _run_solve((parts[0], identity), (inputs[0], inputs[0]), outputs, options, comm)


def _run_slogdet(
    parts: Parts, inputs: Layouts, outputs: Layouts, options: Options, comm: Communicator
) -> Parts:
    n = inputs[0].shape[0]
    factors, order = lu.lu(parts[0], n, options[0], grid_of(comm))
    sign, logarithm = lu.slogdet(factors, order, options[0], grid_of(comm))
    return [np.asarray(sign), np.asarray(logarithm)]


def _run_qr(
    parts: Parts, inputs: Layouts, outputs: Layouts, options: Options, comm: Communicator
) -> Parts:
    return [each.part for each in qr(Matrix(parts[0], inputs[0], comm), options[0])]


def _run_svd(
    parts: Parts, inputs: Layouts, outputs: Layouts, options: Options, comm: Communicator
) -> Parts:
    with named("svd"):
        a = Matrix(parts[0], inputs[0], comm)
        if options == (BIDIAGONAL,):
            u, s, vh = bidiagonal_svd(a)
        else:
            u, s, vh = svd(a, together=options == (TOGETHER,))
    return [u.part, s, vh.part]


def _run_eigh(
    parts: Parts, inputs: Layouts, outputs: Layouts, options: Options, comm: Communicator
) -> Parts:
    with named("eigh"):
        w, v = eigh(Matrix(parts[0], inputs[0], comm), together=options == (TOGETHER,))
    return [w, v.part]


# --- where inputs must be and outputs will be


def _in_place(node: Node, ranks: int, widest: int) -> tuple[Layouts, Layouts]:
    given = _cyclic(node, ranks, widest)
    return given, given[-1:]


def _numbers(node: Node, ranks: int, widest: int) -> tuple[Layouts, Layouts]:
    everywhere = [replicated(spec.shape, range(ranks)) for spec in node.outputs]
    return _cyclic(node, ranks, widest), everywhere


def _of_qr(node: Node, ranks: int, widest: int) -> tuple[Layouts, Layouts]:
    given, *made = qr_layouts(_shape(node), ranks, widest)
    return [given], made


def _of_svd(node: Node, ranks: int) -> tuple[Layouts, Layouts]:
    m, n = _shape(node)
    k = min(m, n)
    if m >= n:
        given: Layout = qr_layouts((m, n), ranks)[0]
    else:
        given = qr_layouts((n, m), ranks)[0].transposed((1, 0))
    cuts = even_cuts(k, ranks)
    u, v = columns_layout((m, k), cuts), columns_layout((n, k), cuts).transposed((1, 0))
    return [given], [u, replicated((k,), range(ranks)), v]


def _of_eigh(node: Node, ranks: int) -> tuple[Layouts, Layouts]:
    n, _ = _shape(node)
    columns = columns_layout((n, n), even_cuts(n, ranks))
    return [columns], [replicated((n,), range(ranks)), columns]


def _of_largest(node: Node, ranks: int) -> tuple[Layouts, Layouts]:
    (m, n), k = _shape(node), node.attrs["k"]
    cuts, everywhere = even_cuts(m, ranks), range(ranks)
    others = [replicated(spec.shape, everywhere) for spec in node.outputs[1:]]
    return [rows_layout((m, n), cuts)], [rows_layout((m, k), cuts), *others]


def _largest_variants(node: Node, given: Layouts, ranks: int) -> list[Variant]:
    inputs, outputs = _of_largest(node, ranks)
    n, k = node.inputs[0].shape[1], node.attrs["k"]
    elements = node.inputs[0].spec.size
    # About ten steps, each of which goes through the matrix twice.
    sent = 20 * n * k * node.inputs[0].dtype.itemsize if ranks > 1 else 0
    cost = Cost(sent, 100 * (ranks - 1), 40 * elements * k // ranks)
    options = (k, node.attrs["tolerance"], node.attrs["steps"], node.attrs["seed"])
    return [Variant("block Krylov", tuple(inputs), tuple(outputs), cost, options)]


def _run_largest(
    parts: Parts, inputs: Layouts, outputs: Layouts, options: Options, comm: Communicator
) -> Parts:
    k, tolerance, steps, seed = options
    return largest_singular(
        parts[0], inputs[0].shape[0], k, comm, seed=seed, tolerance=tolerance, most_steps=steps
    )


def _sweeps(k: int, ranks: int, itemsize: int) -> Cost:
    """About six sweeps, in each of which every block goes round and is rotated with every other."""
    meetings = SWEEPS * (2 * ranks - 1)
    nbytes = SWEEPS * 2 * 2 * k * k * itemsize if ranks > 1 else 0
    return Cost(nbytes, 4 * meetings, ROTATING * k**3 // ranks, overhead=meetings * MEETING_S)


def _spectral(
    layouts: Callable[[Node, int], tuple[Layouts, Layouts]],
) -> Callable[[Node, Layouts, int], list[Variant]]:
    """Block Jacobi by all ranks, or LAPACK on each of them for what is left after QR."""

    def variants(node: Node, given: Layouts, ranks: int) -> list[Variant]:
        if len(node.inputs[0].shape) != 2:
            return []
        inputs, outputs = (tuple(each) for each in layouts(node, ranks))
        k, itemsize = min(_shape(node)), node.inputs[0].dtype.itemsize
        cost, square = _grid_cost(node, ranks, block_size(k, ranks)), k * k * itemsize
        jacobi = cost + _sweeps(k, ranks, itemsize)
        found = [Variant("one-sided block Jacobi", inputs, outputs, jacobi, (TOGETHER,))]
        if square <= LOCAL_BYTES:
            factor, small = SPECTRAL[node.op.name]
            alone = Cost(square, ranks, factor * k * k * (k + small), workspace=3 * square)
            found.append(Variant("LAPACK on each rank", inputs, outputs, cost + alone, (ALIKE,)))
        return found

    return variants


def _svd_variants(node: Node, given: Layouts, ranks: int) -> list[Variant]:
    """Also by a bidiagonal matrix, if every rank has room for the smaller factor."""
    found = _spectral(_of_svd)(node, given, ranks)
    if not found or min(_shape(node)) ** 2 * node.inputs[0].dtype.itemsize > LOCAL_BYTES:
        return found
    inputs, outputs = (tuple(each) for each in _of_svd(node, ranks))
    m, n = sorted(_shape(node), reverse=True)
    itemsize = node.inputs[0].dtype.itemsize
    cost = Cost()
    if m >= TALL * n:
        # What a QR takes, and the product with its Q.
        cost = _grid_cost(node, ranks, block_size(n, ranks)) + Cost(flops=2 * m * n * n // ranks)
        m = n
    else:
        inputs = (dealt_columns(_shape(node), ranks),)
    cost += _bidiagonal_cost(m, n, ranks, itemsize)
    return [*found, Variant("bidiagonal SVD", inputs, outputs, cost, (BIDIAGONAL,))]


def _bidiagonal_cost(m: int, n: int, ranks: int, itemsize: int) -> Cost:
    """Every step reads what is left of a rank's columns twice, and sums two columns over ranks."""
    left = m * n * n / 2 - n**3 / 6
    back = 2 * (m + n) * n * n // ranks
    sums = 2 * (m - n / 2) * n * (2 * (ranks - 1) / ranks)
    return Cost(
        int((sums + n * n) * itemsize) * (ranks > 1),
        flops=DIVIDING * n**3 + back, workspace=6 * n * n * itemsize,
        copied=int(9 / 4 * left / ranks * itemsize), panels=(("reflection", n),),
    )  # fmt: skip


def _shape(node: Node) -> Size:
    m, n = node.inputs[0].shape
    return m, n


ALGORITHMS: dict[str, Algorithm] = {
    "matmul": MATMUL,
    "fft": FFT,
    "rfft": FFT,
    "irfft": FFT,
    "sort": SORT,
    "top_k": TOP_K,
    "cumsum": CUMSUM,
    ops.ordered_sum.name: ORDERED_SUM,
    "cholesky": Algorithm(_matrices(_in_place, "blocked Cholesky"), _run_cholesky),
    "solve": Algorithm(_matrices(_in_place, "LU, partial pivoting"), _run_solve),
    "inverse": Algorithm(_matrices(_in_place, "LU, partial pivoting"), _run_inverse),
    "slogdet": Algorithm(_matrices(_numbers, "LU, partial pivoting"), _run_slogdet),
    "qr": Algorithm(_matrices(_of_qr, "blocked QR"), _run_qr),
    "svd": Algorithm(_svd_variants, _run_svd),
    ops.largest_singular.name: Algorithm(_largest_variants, _run_largest),
    "eigh": Algorithm(_spectral(_of_eigh), _run_eigh),
}
"""By the name of the op of whole values."""
