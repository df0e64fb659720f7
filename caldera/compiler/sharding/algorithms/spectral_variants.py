"""The ways to singular values and eigenvalues on ranks, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from caldera.comm import Communicator
from caldera.compiler.sharding.algorithms.panels import (
    LocalMatrix,
    block_size,
    grid_cost,
    qr_layouts,
    shape_of,
)
from caldera.compiler.sharding.algorithms.process_grid import even_cuts
from caldera.compiler.sharding.algorithms.svd import TALL, bidiagonal_svd, dealt_columns, eigh, svd
from caldera.compiler.sharding.algorithms.variant import (
    Algorithm,
    AlgorithmCost,
    Options,
    Variant,
    columns_layout,
)
from caldera.compiler.sharding.layout import ShardLayout, replicated
from caldera.core.graph.node import Node
from caldera.kernels.reference.algebra import named

Parts = Sequence[np.ndarray]
Layouts = Sequence[ShardLayout]
TOGETHER, ALIKE, BIDIAGONAL = "together", "alike", "bidiagonal"
SPECTRAL = (10, 330)
"""Operations of LAPACK's `eigh` for the square of a size times the size and some more, at the speed
of products."""
SWEEPS, ROTATING, MEETING_S = 6, 300, 2e-3
"""Of block Jacobi: sweeps, operations for the cube of the size, and seconds for two blocks that
meet."""
DIVIDING = 9000
"""Of LAPACK's `bdsdc`, of a bidiagonal matrix: operations for the square of the size are the size
and so many more, at the speed of products."""
LOCAL_BYTES = 32 << 20
"""What LAPACK may be given on every rank: a bounded buffer, whatever the size of the array."""


def _of_svd(node: Node, ranks: int) -> tuple[Layouts, Layouts]:
    m, n = shape_of(node)
    k = min(m, n)
    if m >= n:
        given: ShardLayout = qr_layouts((m, n), ranks)[0]
    else:
        given = qr_layouts((n, m), ranks)[0].transposed((1, 0))
    cuts = even_cuts(k, ranks)
    u, v = columns_layout((m, k), cuts), columns_layout((n, k), cuts).transposed((1, 0))
    return [given], [u, replicated((k,), range(ranks)), v]


def _of_eigh(node: Node, ranks: int) -> tuple[Layouts, Layouts]:
    n, _ = shape_of(node)
    columns = columns_layout((n, n), even_cuts(n, ranks))
    return [columns], [replicated((n,), range(ranks)), columns]


def _sweeps(k: int, ranks: int, itemsize: int) -> AlgorithmCost:
    """About six sweeps, in each of which every block goes round and is rotated with every other."""
    meetings = SWEEPS * (2 * ranks - 1)
    nbytes = SWEEPS * 2 * 2 * k * k * itemsize if ranks > 1 else 0
    return AlgorithmCost(
        nbytes, 4 * meetings, ROTATING * k**3 // ranks, overhead=meetings * MEETING_S
    )


def _jacobi_variants(
    layouts: Callable[[Node, int], tuple[Layouts, Layouts]], node: Node, ranks: int
) -> list[Variant]:
    """Block Jacobi by all ranks, for what is left after QR."""
    if len(node.inputs[0].shape) != 2:
        return []
    inputs, outputs = (tuple(each) for each in layouts(node, ranks))
    k = min(shape_of(node))
    cost = grid_cost(node, ranks, block_size(k, ranks))
    cost += _sweeps(k, ranks, node.inputs[0].dtype.itemsize)
    return [Variant("one-sided block Jacobi", inputs, outputs, cost, (TOGETHER,))]


def _eigh_variants(node: Node, given: Layouts, ranks: int) -> list[Variant]:
    """Also by LAPACK on each rank, if it has room for the matrix."""
    found = _jacobi_variants(_of_eigh, node, ranks)
    n, itemsize = shape_of(node)[1], node.inputs[0].dtype.itemsize
    if not found or n * n * itemsize > LOCAL_BYTES:
        return found
    factor, small = SPECTRAL
    alone = AlgorithmCost(
        n * n * itemsize, ranks, factor * n * n * (n + small), workspace=3 * n * n * itemsize
    )
    inputs, outputs = (tuple(each) for each in _of_eigh(node, ranks))
    cost = grid_cost(node, ranks, block_size(n, ranks)) + alone
    return [*found, Variant("LAPACK on each rank", inputs, outputs, cost, (ALIKE,))]


def _svd_variants(node: Node, given: Layouts, ranks: int) -> list[Variant]:
    """Also by a bidiagonal matrix, if every rank has room for the smaller factor."""
    found = _jacobi_variants(_of_svd, node, ranks)
    if not found:
        return []
    (n, m), itemsize = sorted(shape_of(node)), node.inputs[0].dtype.itemsize
    if n * n * itemsize > LOCAL_BYTES:
        return found
    inputs, outputs = (tuple(each) for each in _of_svd(node, ranks))
    cost = AlgorithmCost()
    if m >= TALL * n:
        # What a QR takes, and the product with its Q.
        cost = grid_cost(node, ranks, block_size(n, ranks)) + AlgorithmCost(
            flops=2 * m * n * n // ranks
        )
        m = n
    else:
        inputs = (dealt_columns(shape_of(node), ranks),)
    cost += _bidiagonal_cost(m, n, ranks, itemsize)
    return [*found, Variant("bidiagonal SVD", inputs, outputs, cost, (BIDIAGONAL,))]


def _bidiagonal_cost(m: int, n: int, ranks: int, itemsize: int) -> AlgorithmCost:
    """Every step reads what is left of a rank's columns twice, and sums two columns over ranks."""
    left = m * n * n / 2 - n**3 / 6
    back = 2 * (m + n) * n * n // ranks
    sums = 2 * (m - n / 2) * n * (2 * (ranks - 1) / ranks)
    return AlgorithmCost(
        int((sums + n * n) * itemsize) * (ranks > 1),
        flops=n * n * (n + DIVIDING) + back,
        workspace=6 * n * n * itemsize,
        copied=int(9 / 4 * left / ranks * itemsize),
        panels=(("reflection", n),),
    )


def _run_svd(
    parts: Parts, inputs: Layouts, outputs: Layouts, options: Options, comm: Communicator
) -> Parts:
    with named("svd"):
        a = LocalMatrix(parts[0], inputs[0], comm)
        if options == (BIDIAGONAL,):
            u, s, vh = bidiagonal_svd(a)
        else:
            u, s, vh = svd(a)
    return [u.part, s, vh.part]


def _run_eigh(
    parts: Parts, inputs: Layouts, outputs: Layouts, options: Options, comm: Communicator
) -> Parts:
    with named("eigh"):
        w, v = eigh(LocalMatrix(parts[0], inputs[0], comm), together=options == (TOGETHER,))
    return [w, v.part]


SVD = Algorithm(_svd_variants, _run_svd)
EIGH = Algorithm(_eigh_variants, _run_eigh)
