"""Variants of ops along one distributed axis, and of singular values and eigenvalues.

They are not needed if another axis is long enough: that axis is partitioned instead, and the op is
local.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from caldera.comm import Communicator
from caldera.compiler.sharding.algorithms import axis_exchange
from caldera.compiler.sharding.algorithms.axis_exchange import cumulative_sum, sort, top_k
from caldera.compiler.sharding.algorithms.panels import (
    LocalMatrix,
    block_size,
    grid_cost,
    qr_layouts,
    shape_of,
)
from caldera.compiler.sharding.algorithms.process_grid import Cuts, even_cuts
from caldera.compiler.sharding.algorithms.svd import TALL, dealt_columns, eigh, svd
from caldera.compiler.sharding.algorithms.variant import (
    Algorithm,
    AlgorithmCost,
    Options,
    Variant,
    axis_layout,
    computing,
    cuts_of,
)
from caldera.compiler.sharding.layout import CartesianLayout, ShardLayout, replicated
from caldera.core.graph.node import Node
from caldera.core.graph.ops.fourier import frequencies
from caldera.core.tensor import HALVES, size
from caldera.kernels.reference.arrays import named

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
"""Constant c of LAPACK's `bdsdc` for a bidiagonal matrix of size n.

It takes n² (n + c) operations, at the speed of products.
"""
LOCAL_BYTES = 32 << 20
"""Largest matrix that LAPACK decomposes on every rank, which bounds the buffers."""


def _of_svd(node: Node, ranks: int) -> tuple[Layouts, Layouts]:
    m, n = shape_of(node)
    k = min(m, n)
    if m >= n:
        given: ShardLayout = qr_layouts((m, n), ranks)[0]
    else:
        given = qr_layouts((n, m), ranks)[0].transposed((1, 0))
    cuts = even_cuts(k, ranks)
    u, v = axis_layout((m, k), -1, cuts), axis_layout((n, k), -1, cuts).transposed((1, 0))
    return [given], [u, replicated((k,), range(ranks)), v]


def _of_eigh(node: Node, ranks: int) -> tuple[Layouts, Layouts]:
    n, _ = shape_of(node)
    columns = axis_layout((n, n), -1, even_cuts(n, ranks))
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
    """Return the variant of block Jacobi on all ranks, which decomposes the factor left by QR."""
    if len(node.inputs[0].shape) != 2:
        return []
    inputs, outputs = (tuple(each) for each in layouts(node, ranks))
    k = min(shape_of(node))
    cost = grid_cost(node, ranks, block_size(k, ranks))
    cost += _sweeps(k, ranks, node.inputs[0].dtype.itemsize)
    return [Variant("one-sided block Jacobi", inputs, outputs, cost, (TOGETHER,))]


def _eigh_variants(node: Node, given: Layouts, ranks: int) -> list[Variant]:
    """Return the variants, including LAPACK on each rank if the matrix fits into its memory."""
    found = _jacobi_variants(_of_eigh, node, ranks)
    if not found:
        return []
    n, itemsize = shape_of(node)[1], node.inputs[0].dtype.itemsize
    if n * n * itemsize > LOCAL_BYTES:
        return found
    factor, small = SPECTRAL
    alone = AlgorithmCost(
        n * n * itemsize, ranks, factor * n * n * (n + small), workspace=3 * n * n * itemsize
    )
    cost = grid_cost(node, ranks, block_size(n, ranks)) + alone
    ways = found[0].inputs, found[0].outputs
    return [*found, Variant("LAPACK on each rank", *ways, cost, (ALIKE,))]


def _svd_variants(node: Node, given: Layouts, ranks: int) -> list[Variant]:
    """Also by a bidiagonal matrix, if every rank has room for the smaller factor."""
    found = _jacobi_variants(_of_svd, node, ranks)
    if not found:
        return []
    (n, m), itemsize = sorted(shape_of(node)), node.inputs[0].dtype.itemsize
    if n * n * itemsize > LOCAL_BYTES:
        return found
    inputs, outputs = found[0].inputs, found[0].outputs
    cost = AlgorithmCost()
    if m >= TALL * n:
        # The cost of a QR and of the product with its Q.
        cost = grid_cost(node, ranks, block_size(n, ranks)) + AlgorithmCost(
            flops=2 * m * n * n // ranks
        )
        m = n
    else:
        inputs = (dealt_columns(shape_of(node), ranks),)
    cost += _bidiagonal_cost(m, n, ranks, itemsize)
    return [*found, Variant("bidiagonal SVD", inputs, outputs, cost, (BIDIAGONAL,))]


def _bidiagonal_cost(m: int, n: int, ranks: int, itemsize: int) -> AlgorithmCost:
    """Return the cost: each step reads a rank's remaining columns twice and sums two columns over
    ranks.
    """
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
        u, s, vh = svd(a, bidiagonal=options == (BIDIAGONAL,))
    return [u.part, s, vh.part]


def _run_eigh(
    parts: Parts, inputs: Layouts, outputs: Layouts, options: Options, comm: Communicator
) -> Parts:
    with named("eigh"):
        w, v = eigh(LocalMatrix(parts[0], inputs[0], comm), together=options == (TOGETHER,))
    return [w, v.part]


SVD = Algorithm(_svd_variants, _run_svd)
EIGH = Algorithm(_eigh_variants, _run_eigh)


def _kept_cuts(layout: ShardLayout, axis: int, ranks: int) -> Cuts:
    """Return the cuts of a layout if they are usable, else equal parts."""
    kept = None if ranks == 1 else cuts_of(layout, axis, ranks)
    in_order = isinstance(layout, CartesianLayout) and layout.ranks == tuple(range(ranks))
    if kept is not None and in_order:
        return kept
    return even_cuts(layout.shape[axis], ranks)


# --- Fourier transforms


def _fft_cost(node: Node, n: int, ranks: int) -> AlgorithmCost:
    """Return the cost: an allgather if short, else three transposes (Bluestein: five times)."""
    elements = max(given.spec.size for given in (*node.inputs, node))
    nbytes = elements * node.dtype.itemsize
    if ranks == 1:
        return computing(node)
    if n <= axis_exchange.SHORT:
        return AlgorithmCost(nbytes * (ranks - 1) // ranks, ranks - 1) + computing(node)
    times = 3 if axis_exchange.factors(n, ranks) else 24
    work = node.op.count_flops(node) // ranks * (times // 3)
    return AlgorithmCost(times * nbytes // ranks, times * (ranks - 1), transforms=work)


def _fft_variants(node: Node, given: Layouts, ranks: int) -> list[Variant]:
    axis, x = node.attrs["axis"], node.inputs[0].shape
    n = node.attrs.get("n", x[axis])
    taken = tuple(min(cut, x[axis]) for cut in axis_exchange.input_cuts(n, ranks))
    made = tuple(min(cut, node.shape[axis]) for cut in axis_exchange.output_cuts(n, ranks))
    name = "six-step FFT" if axis_exchange.factors(n, ranks) else "Bluestein's FFT"
    return [
        Variant(
            name if n > axis_exchange.SHORT else "gathered FFT",
            (axis_layout(x, axis, taken),),
            (axis_layout(node.shape, axis, made),),
            _fft_cost(node, n, ranks),
            (node.op.name, axis, n, bool(node.attrs.get("inverse", node.op.name == "irfft"))),
        )
    ]


def _run_fft(
    parts: Parts, inputs: Layouts, outputs: Layouts, options: Options, comm: Communicator
) -> Parts:
    name, axis, n, inverse = options
    x = parts[0]
    if name != "rfft":
        pairs = np.ascontiguousarray(x)
        x = pairs.view(np.result_type(x.dtype, np.complex64)).reshape(x.shape[:-1])
    x = np.moveaxis(x, axis, 0)
    cuts = axis_exchange.input_cuts(n, comm.size)
    begin, end = cuts[comm.rank], cuts[comm.rank + 1]
    if name == "irfft":
        x = axis_exchange.spectrum_to_signal(x, n, begin)
        x = np.pad(x, [(0, end - begin - len(x)), *[(0, 0)] * (x.ndim - 1)])
    made = axis_exchange.fft(np.ascontiguousarray(x), n, comm, inverse=inverse)
    if name == "irfft":
        return [np.ascontiguousarray(np.moveaxis(made.real, 0, axis))]
    if name == "rfft":
        first = axis_exchange.output_cuts(n, comm.size)[comm.rank]
        made = made[: max(frequencies(n) - first, 0)]
    found = np.ascontiguousarray(np.moveaxis(made, 0, axis))
    return [found.view(found.real.dtype).reshape(*found.shape, 2)]


# --- sorting and running sums


def _sort_variants(node: Node, given: Layouts, ranks: int) -> list[Variant]:
    x = node.inputs[0]
    if len(x.shape) != 1:
        return []
    layout = axis_layout(x.shape, 0, _kept_cuts(given[0], 0, ranks))
    moved = 2 * x.spec.size * (x.dtype.itemsize + 8) // ranks
    cost = AlgorithmCost(moved if ranks > 1 else 0, 5 * (ranks - 1)) + computing(node, ranks)
    options = (bool(node.attrs["descending"]),)
    return [Variant("sample sort", (layout,), (layout, layout), cost, options)]


def _run_sort(
    parts: Parts, inputs: Layouts, outputs: Layouts, options: Options, comm: Communicator
) -> Parts:
    return sort(parts[0], _cuts_in(inputs[0], 0, comm), comm, descending=options[0])


def _cuts_in(layout: ShardLayout, axis: int, comm: Communicator) -> Cuts:
    lengths = [layout.local_shape(rank)[axis] for rank in range(comm.size)]
    return (0, *(int(cut) for cut in np.cumsum(lengths)))


def _top_k_variants(node: Node, given: Layouts, ranks: int) -> list[Variant]:
    x, axis, k = node.inputs[0], node.attrs["axis"], node.attrs["k"]
    layout = axis_layout(x.shape, axis, _kept_cuts(given[0], axis, ranks))
    whole = replicated(node.outputs[0].shape, range(ranks))
    moved = size(node.outputs[0].shape) * (x.dtype.itemsize + 8) * (ranks - 1)
    cost = AlgorithmCost(moved, 2 * (ranks - 1), x.spec.size // ranks)
    return [Variant("top k of each rank", (layout,), (whole, whole), cost, (axis, k))]


def _run_top_k(
    parts: Parts, inputs: Layouts, outputs: Layouts, options: Options, comm: Communicator
) -> Parts:
    axis, k = options
    found = top_k(np.moveaxis(parts[0], axis, 0), _cuts_in(inputs[0], axis, comm), k, comm)
    return [np.ascontiguousarray(np.moveaxis(each, 0, axis)) for each in found]


def _cumsum_variants(node: Node, given: Layouts, ranks: int) -> list[Variant]:
    x, axis = node.inputs[0], node.attrs["axis"]
    layout = axis_layout(x.shape, axis, _kept_cuts(given[0], axis, ranks))
    line = size(x.shape) // max(x.shape[axis], 1) * x.dtype.itemsize
    cost = AlgorithmCost(line * (ranks - 1), ranks - 1, node.op.count_flops(node) // ranks)
    return [Variant("scan", (layout,), (layout,), cost, (axis, bool(node.attrs["reverse"])))]


def _run_cumsum(
    parts: Parts, inputs: Layouts, outputs: Layouts, options: Options, comm: Communicator
) -> Parts:
    axis, reverse = options
    found = cumulative_sum(np.moveaxis(parts[0], axis, 0), comm, reverse=reverse)
    return [np.ascontiguousarray(np.moveaxis(found, 0, axis))]


# --- sums in one order


def _ordered_sum_variants(node: Node, given: Layouts, ranks: int) -> list[Variant]:
    """Return a variant with whole lines on each rank: sums do not depend on the rank count."""
    x, other = node.inputs[0], 1 - node.attrs["axis"]
    cuts = _kept_cuts(given[0], other, ranks)
    cost = AlgorithmCost(flops=x.spec.size // ranks)
    inputs, outputs = axis_layout(x.shape, other, cuts), axis_layout(node.shape, 0, cuts)
    return [Variant("whole lines", (inputs,), (outputs,), cost, (node.attrs["axis"],))]


def _run_ordered_sum(
    parts: Parts, inputs: Layouts, outputs: Layouts, options: Options, comm: Communicator
) -> Parts:
    return [tree_sum_of_rows(parts[0] if options[0] == 0 else parts[0].T)]


def tree_sum_of_rows(x: np.ndarray) -> np.ndarray:
    """Sum the rows in pairs, then the sums in pairs, and so on, separately for each column.

    >>> tree_sum_of_rows(np.arange(10.0).reshape(5, 2))
    array([20., 25.])
    """
    wide = np.float32 if x.dtype in HALVES else x.dtype
    total = x.astype(wide)
    while len(total) > 1:
        half, odd = divmod(len(total), 2)
        sums = total[:half] + total[half : 2 * half]
        total = np.concatenate((sums, total[-1:])) if odd else sums
    whole: np.ndarray = total[0] if len(total) else np.zeros(x.shape[1], wide)
    return whole.astype(x.dtype)


FFT = Algorithm(_fft_variants, _run_fft)
SORT = Algorithm(_sort_variants, _run_sort)
TOP_K = Algorithm(_top_k_variants, _run_top_k)
CUMSUM = Algorithm(_cumsum_variants, _run_cumsum)
ORDERED_SUM = Algorithm(_ordered_sum_variants, _run_ordered_sum)
