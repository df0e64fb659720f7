"""Variants of matrix products on ranks: their cost, and running a variant."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from itertools import product as pairs

import numpy as np

from caldera.comm import Communicator
from caldera.compiler.sharding.algorithms import product
from caldera.compiler.sharding.algorithms.process_grid import (
    Cuts,
    even_cuts,
    grid_shapes,
    process_grid,
)
from caldera.compiler.sharding.algorithms.product import multiply_in_memory, steps_in_memory
from caldera.compiler.sharding.algorithms.variant import (
    Algorithm,
    AlgorithmCost,
    Options,
    Variant,
    cuts_of,
    grid_layout,
)
from caldera.compiler.sharding.layout import ShardLayout
from caldera.core.graph.node import Node
from caldera.core.tensor.shape import Shape, size

EXTRA_MEMORY = 0.3
"""Maximum size of the sums of several layers, as a share of the parts of all three matrices."""
FREE_BYTES = 16 << 20
"""Size of the sums that is allowed in any case."""
STATIONARY_A, STATIONARY_B, STATIONARY_C = "stationary A", "stationary B", "stationary C"


def matmul_variants(node: Node, layouts: Sequence[ShardLayout], ranks: int) -> list[Variant]:
    """Return the variants of a matrix product: all algorithms on all grids."""
    a, b = node.inputs
    how = node.attrs["ta"], node.attrs["tb"]
    return product_variants(a.shape, b.shape, how, layouts, ranks, a.dtype.itemsize)


def product_variants(
    a: Shape,
    b: Shape,
    transposed: tuple[bool, bool],
    given: Sequence[ShardLayout],
    ranks: int,
    itemsize: int,
) -> list[Variant]:
    """Return the variants for matrices of these shapes (or batches) in the layouts `given`.

    Uneven cuts are kept if an algorithm supports them.
    """
    first, second = _as_read(given[0], transposed[0]), _as_read(given[1], transposed[1])
    found = []
    for layers in (each for each in range(1, ranks + 1) if ranks % each == 0):
        for rows, columns in grid_shapes(ranks // layers):
            grid = (layers, rows, columns)
            for form in (STATIONARY_C, STATIONARY_A, STATIONARY_B):
                if form == STATIONARY_C or (layers == 1 and ranks > 1):
                    options = (form, grid, _cuts(form, grid, first, second), transposed)
                    found.append(_variant(a, b, options, itemsize))
    share = EXTRA_MEMORY * _elements(found[0]) * itemsize / ranks
    return [variant for variant in found if _sums(variant, itemsize) <= max(share, FREE_BYTES)]


def _elements(variant: Variant) -> int:
    return sum(size(layout.shape) for layout in (*variant.inputs, *variant.outputs))


def _sums(variant: Variant, itemsize: int) -> int:
    """Return the bytes of a layer's sums, before the layers are added up."""
    (layers, _, _), cuts = variant.options[1:3]
    return 0 if layers == 1 else product.longest(cuts[0]) * product.longest(cuts[3]) * itemsize


def _as_read(layout: ShardLayout, transposed: bool) -> ShardLayout:
    if not transposed:
        return layout
    axes = list(range(len(layout.shape)))
    return layout.transposed((*axes[:-2], axes[-1], axes[-2]))


def _cuts(
    form: str, grid: tuple[int, int, int], a: ShardLayout, b: ShardLayout
) -> tuple[Cuts, ...]:
    """(rows, inner of A, inner of B, columns), for all layers together."""
    layers, rows, columns = grid
    (*_, m, k), n = a.shape, b.shape[-1]
    by_rows = _kept(a, -2, rows) or even_cuts(m, rows)
    by_columns = _kept(b, -1, columns) or even_cuts(n, columns)
    if form == STATIONARY_B:
        # Both have the inner axis over the rows of the grid, A its rows over the columns.
        inner = _kept(b, -2, rows) or _kept(a, -1, rows) or even_cuts(k, rows)
        return _kept(a, -2, columns) or even_cuts(m, columns), inner, inner, by_columns
    if form == STATIONARY_A:
        inner = _kept(a, -1, columns) or _kept(b, -2, columns) or even_cuts(k, columns)
        return by_rows, inner, inner, _kept(b, -1, rows) or even_cuts(n, rows)
    if layers == 1:
        inner_a = _kept(a, -1, columns) or even_cuts(k, columns)
        inner_b = _kept(b, -2, rows) or even_cuts(k, rows)
    else:
        # Layers as equal as possible, each in equal parts.
        inner_a, inner_b = (_subdivided(even_cuts(k, layers), n) for n in (columns, rows))
        if rows == columns == 1:
            inner_a = inner_b = _kept(a, -1, layers) or _kept(b, -2, layers) or inner_a
    return by_rows, inner_a, inner_b, by_columns


def _kept(layout: ShardLayout, axis: int, parts: int) -> Cuts | None:
    return None if parts == 1 else cuts_of(layout, axis, parts)


def _subdivided(cuts: Cuts, parts: int) -> Cuts:
    found = [0]
    for begin, end in pairwise(cuts):
        found += [begin + cut for cut in even_cuts(end - begin, parts)[1:]]
    return tuple(found)


def _variant(a: Shape, b: Shape, options: Options, itemsize: int) -> Variant:
    form, (layers, rows, columns), cuts, (ta, tb) = options
    ranks = np.arange(layers * rows * columns).reshape(layers, rows, columns)
    in_order: list[int] = ranks.reshape(-1).tolist()
    factors: tuple[ShardLayout, ShardLayout]
    by_row = ranks.transpose(1, 0, 2).reshape(-1).tolist()
    m, inner_a, inner_b, n = cuts
    shape_a = (*a[:-2], m[-1], inner_a[-1])
    shape_b = (*b[:-2], inner_b[-1], n[-1])
    batch = np.broadcast_shapes(a[:-2], b[:-2])
    out_rows, out_columns = m, n
    if form == STATIONARY_B:
        swapped = (*a[:-2], inner_a[-1], m[-1])
        factors = (
            _as_read(grid_layout(swapped, inner_a, m, in_order), True),
            grid_layout(shape_b, inner_b, n, in_order),
        )
        out_rows = even_cuts(m[-1], rows)
    elif form == STATIONARY_A:
        swapped = (*b[:-2], n[-1], inner_b[-1])
        factors = (
            grid_layout(shape_a, m, inner_a, in_order),
            _as_read(grid_layout(swapped, n, inner_b, in_order), True),
        )
        out_columns = even_cuts(n[-1], columns)
    else:
        factors = (
            grid_layout(shape_a, m, inner_a, by_row),
            grid_layout(shape_b, inner_b, n, in_order),
        )
        out_rows = _subdivided(m, layers)
    of_c = grid_layout((*batch, m[-1], n[-1]), out_rows, out_columns, by_row)
    inputs = _as_read(factors[0], ta), _as_read(factors[1], tb)
    cost = product_cost(form, (layers, rows, columns), cuts, itemsize, size(batch))
    return Variant(_name(form, layers, rows, columns), inputs, (of_c,), cost, options)


def _name(form: str, layers: int, rows: int, columns: int) -> str:
    if layers * rows * columns == 1:
        return "local"
    if layers > 1:
        return f"2.5-D {layers}x{rows}x{columns}" if rows * columns > 1 else "inner product"
    if form == STATIONARY_C and 1 in (rows, columns):
        return "stationary A, 1-D" if columns == 1 else "stationary B, 1-D"
    return f"SUMMA {rows}x{columns}, {form}"


def product_cost(
    form: str, grid: tuple[int, int, int], cuts: Sequence[Cuts], itemsize: int, batch: int = 1
) -> AlgorithmCost:
    """Return the cost of the rank with the longest parts.

    >>> from caldera.compiler.sharding.algorithms.process_grid import even_cuts
    >>> whole, halves = (0, 64), even_cuts(64, 2)
    >>> product_cost(STATIONARY_C, (1, 2, 2), [halves, halves, halves, halves], 8).bytes
    16384
    >>> quarters = even_cuts(64, 4)
    >>> cost = product_cost(STATIONARY_C, (1, 4, 1), [quarters, whole, quarters, whole], 8)
    >>> cost.bytes, cost.messages, cost.flops, cost.workspace
    (24576, 3, 131072, 12288)
    """
    layers, rows, columns = grid
    m, inner_a, inner_b, n = (product.longest(each) for each in cuts)
    total_m, _, _, total_n = (each[-1] for each in cuts)
    if form == STATIONARY_C:
        inner = max(inner_a * columns, inner_b * rows)
        sent = m * inner * (columns - 1) // columns + n * inner * (rows - 1) // rows
        sent += m * n * (layers - 1) // layers
        flops = 2 * m * inner * n
        # Of each layer alike.
        stretches = product.stretches_of(cuts[1][: columns + 1], cuts[2][: rows + 1])
        slices = product.slices_each(stretches, (m + n) * itemsize)
        messages = slices * sum((each.column > 0) + (each.row > 0) for each in stretches)
        widest = max((-(-(each.end - each.begin) // slices) for each in stretches), default=0)
        # Slices sent for the next step are copies unless they are contiguous.
        workspace = (2 * m + n) * widest + (m * n if layers > 1 else 0)
        steps = 0
        if layers == 1:
            steps = steps_in_memory(total_m, total_n, cuts[1], cuts[2], itemsize, rows * columns)
        # A rank's blocks of A and B are read once and written once to shared memory.
        own = (m * inner_a + inner_b * n) * (rows * columns > 1)
        return AlgorithmCost(
            batch * sent * itemsize,
            batch * (messages + layers - 1),
            batch * flops,
            workspace * itemsize,
            copied=2 * batch * own * itemsize,
            posted=batch * sent * itemsize if steps else 0,
            meetings=batch * steps,
        )
    if form == STATIONARY_A:
        # The same with rows and columns exchanged.
        rows, columns = columns, rows
        total_m, inner_a, n = total_n, inner_b, m
    sent = (total_m * inner_a * (columns - 1)) // columns + total_m * n * (rows - 1) // rows
    held = inner_a + 2 * n
    messages, panels = columns + rows - 2, max(product.panel_count(total_m, held * itemsize), 1)
    flops = 2 * total_m * inner_a * n
    widest = -(-max(cuts[1][-1], 1) // panels)
    return AlgorithmCost(
        batch * sent * itemsize,
        batch * (messages * panels + layers - 1),
        batch * flops,
        held * widest * itemsize,
    )


# --- running


def run_matmul(
    parts: Sequence[np.ndarray],
    inputs: Sequence[ShardLayout],
    outputs: Sequence[ShardLayout],
    options: Options,
    comm: Communicator,
) -> list[np.ndarray]:
    """Return this rank's part of a product, or of several."""
    out = np.empty(outputs[0].local_shape(comm.rank), parts[0].dtype)
    run_matmul_into((out,), parts, inputs, outputs, options, comm)
    return [out]


def run_matmul_into(
    places: Sequence[np.ndarray],
    parts: Sequence[np.ndarray],
    inputs: Sequence[ShardLayout],
    outputs: Sequence[ShardLayout],
    options: Options,
    comm: Communicator,
) -> None:
    """Compute the product, or each product of a batch in order."""
    (out,) = places
    ta, tb = options[3]
    a, b = (part.swapaxes(-1, -2) if t else part for part, t in zip(parts, (ta, tb), strict=True))
    batch = out.shape[:-2]
    a = np.broadcast_to(a, (*batch, *a.shape[-2:]))
    b = np.broadcast_to(b, (*batch, *b.shape[-2:]))
    for index in pairs(*map(range, batch)):
        _multiply(out[index], a[index], b[index], options, comm)


def _multiply(
    out: np.ndarray, a: np.ndarray, b: np.ndarray, options: Options, comm: Communicator
) -> None:
    form, (layers, rows, columns), (m, inner_a, inner_b, n), transposed = options
    if comm.size == 1:
        np.matmul(a, b, out=out)
        return
    grid = process_grid(comm, rows, columns, layers)
    layer = grid.place[0]
    if form == STATIONARY_B:
        out[...] = product.stationary_b(a.T, b, grid, inner_a, m, n, even_cuts(m[-1], rows))
        return
    if form == STATIONARY_A:
        out[...] = product.stationary_a(a, b.T, grid, m, inner_b, n, even_cuts(n[-1], columns))
        return
    inner_a = _of_layer(inner_a, layer, columns)
    inner_b = _of_layer(inner_b, layer, rows)
    factors = product.Factors(a, b, grid, m, inner_a, inner_b, n)
    if layers == 1:
        steps = steps_in_memory(m[-1], n[-1], inner_a, inner_b, a.itemsize, comm.size)
        if steps and comm.shares_memory:
            multiply_in_memory(out, factors, steps)
        else:
            product.stationary_c(out, factors, transposed)
        return
    c = np.empty((a.shape[0], b.shape[1]), a.dtype)
    product.stationary_c(c, factors, transposed)
    own = even_cuts(m[grid.row + 1] - m[grid.row], layers)
    out[...] = product.sum_scatter(c, list(np.diff(own)), grid.along_layers)


def _of_layer(cuts: Cuts, layer: int, parts: int) -> Cuts:
    own = cuts[layer * parts : (layer + 1) * parts + 1]
    return tuple(cut - own[0] for cut in own)


MATMUL = Algorithm(matmul_variants, run_matmul, run_matmul_into)
