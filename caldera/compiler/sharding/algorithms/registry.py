"""Registry of distributed algorithms by op, and SPMD nodes that run them.

`caldera.compiler.sharding.propagation` reads the variants of an op from this table, converts the
inputs to the layouts of the chosen variant, and writes an `spmd` node, whose kernel runs the
algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from caldera.comm import Communicator, SingleProcess
from caldera.compiler.sharding import ops
from caldera.compiler.sharding.algorithms import lu
from caldera.compiler.sharding.algorithms.axis_variants import (
    CUMSUM,
    EIGH,
    FFT,
    ORDERED_SUM,
    SORT,
    SVD,
    TOP_K,
)
from caldera.compiler.sharding.algorithms.cholesky import cholesky, factorise
from caldera.compiler.sharding.algorithms.panels import (
    BLOCK,
    LocalMatrix,
    block_size,
    factorisation_grid,
    grid_cost,
    grid_of,
    is_tall,
    qr,
    qr_layouts,
    shape_of,
    tsqr_cost,
)
from caldera.compiler.sharding.algorithms.process_grid import even_cuts
from caldera.compiler.sharding.algorithms.product_variants import MATMUL
from caldera.compiler.sharding.algorithms.svd import largest_singular
from caldera.compiler.sharding.algorithms.variant import (
    Algorithm,
    AlgorithmCost,
    Options,
    Variant,
    axis_layout,
    cyclic_layout,
)
from caldera.compiler.sharding.layout import ShardLayout, replicated
from caldera.core.graph import Node, Spec, op, refuse_shape
from caldera.core.graph.ops.collective import TOKEN
from caldera.core.tensor.dtype import DType
from caldera.kernels.table import TABLE, Call, Kernel, Runner

Parts = Sequence[np.ndarray]
Layouts = Sequence[ShardLayout]
Size = tuple[int, int]
BLOCKS = (32, 64, 128, 256)
"""Maximum widths of panels: wide panels are fewer, narrow panels finish sooner."""


def _matrices(
    layouts: Callable[[Node, int, int], tuple[Layouts, Layouts]], name: str
) -> Callable[[Node, Layouts, int], list[Variant]]:
    """Return a function that lists the variants of a matrix op by panel width.

    Algorithms do not support batches of matrices. The `options` are the width.
    """

    def variants(node: Node, given: Layouts, ranks: int) -> list[Variant]:
        if any(len(each.shape) != 2 for each in node.inputs):
            return []
        if node.op.name == "qr" and is_tall(shape_of(node), ranks):
            inputs, outputs = layouts(node, ranks, BLOCK)
            return [
                Variant("TSQR", tuple(inputs), tuple(outputs), tsqr_cost(node, ranks), (BLOCK,))
            ]
        found = {}
        for widest in BLOCKS:
            inputs, outputs = layouts(node, ranks, widest)
            block = block_size(min(node.inputs[0].shape), ranks, widest)
            cost = grid_cost(node, ranks, block)
            title = f"{name}, blocks of {block}"
            # Small matrices have narrow panels for any maximum width.
            found[block] = Variant(title, tuple(inputs), tuple(outputs), cost, (block,))
        return list(found.values())

    return variants


def _cyclic(node: Node, ranks: int, widest: int) -> list[ShardLayout]:
    """Return block-cyclic layouts of all inputs, with the block of the first."""
    block, grid = block_size(node.inputs[0].shape[0], ranks, widest), factorisation_grid(ranks)
    return [cyclic_layout((m, n), block, grid) for m, n in (each.shape for each in node.inputs)]


# --- one function for each op


def _run_cholesky(
    parts: Parts, inputs: Layouts, outputs: Layouts, options: Options, comm: Communicator
) -> Parts:
    return [cholesky(parts[0], inputs[0].shape[0], options[0], grid_of(comm), average=True)]


def _run_cholesky_into(
    places: Parts,
    parts: Parts,
    inputs: Layouts,
    outputs: Layouts,
    options: Options,
    comm: Communicator,
) -> None:
    (place,) = places
    if not place.flags.c_contiguous:
        np.copyto(place, _run_cholesky(parts, inputs, outputs, options, comm)[0])
        return
    np.copyto(place, parts[0])
    factorise(place, inputs[0].shape[0], options[0], grid_of(comm), average=True)


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
    return [each.part for each in qr(LocalMatrix(parts[0], inputs[0], comm), options[0])]


# --- where inputs must be and outputs will be


def _in_place(node: Node, ranks: int, widest: int) -> tuple[Layouts, Layouts]:
    given = _cyclic(node, ranks, widest)
    return given, given[-1:]


def _numbers(node: Node, ranks: int, widest: int) -> tuple[Layouts, Layouts]:
    everywhere = [replicated(spec.shape, range(ranks)) for spec in node.outputs]
    return _cyclic(node, ranks, widest), everywhere


def _of_qr(node: Node, ranks: int, widest: int) -> tuple[Layouts, Layouts]:
    given, *made = qr_layouts(shape_of(node), ranks, widest)
    return [given], made


def _largest_variants(node: Node, given: Layouts, ranks: int) -> list[Variant]:
    (m, n), k = shape_of(node), node.attrs["k"]
    rows, everywhere = even_cuts(m, ranks), range(ranks)
    others = (replicated(spec.shape, everywhere) for spec in node.outputs[1:])
    inputs, outputs = axis_layout((m, n), 0, rows), (axis_layout((m, k), 0, rows), *others)
    # About ten steps, each of which reads the matrix twice.
    sent = 20 * n * k * node.inputs[0].dtype.itemsize if ranks > 1 else 0
    cost = AlgorithmCost(sent, 100 * (ranks - 1), 40 * m * n * k // ranks)
    options = (k, node.attrs["tolerance"], node.attrs["steps"], node.attrs["seed"])
    return [Variant("block Krylov", (inputs,), outputs, cost, options)]


def _run_largest(
    parts: Parts, inputs: Layouts, outputs: Layouts, options: Options, comm: Communicator
) -> Parts:
    k, tolerance, steps, seed = options
    return largest_singular(
        parts[0], inputs[0].shape[0], k, comm, seed=seed, tolerance=tolerance, most_steps=steps
    )


ALGORITHMS: dict[str, Algorithm] = {
    "matmul": MATMUL,
    "fft": FFT,
    "rfft": FFT,
    "irfft": FFT,
    "sort": SORT,
    "top_k": TOP_K,
    "cumsum": CUMSUM,
    ops.ordered_sum.name: ORDERED_SUM,
    "cholesky": Algorithm(
        _matrices(_in_place, "blocked Cholesky"), _run_cholesky, _run_cholesky_into
    ),
    "solve": Algorithm(_matrices(_in_place, "LU, partial pivoting"), _run_solve),
    "inverse": Algorithm(_matrices(_in_place, "LU, partial pivoting"), _run_inverse),
    "slogdet": Algorithm(_matrices(_numbers, "LU, partial pivoting"), _run_slogdet),
    "qr": Algorithm(_matrices(_of_qr, "blocked QR"), _run_qr),
    "svd": SVD,
    ops.largest_singular.name: Algorithm(_largest_variants, _run_largest),
    "eigh": EIGH,
}
"""Algorithms by the name of the op on whole values."""


@op("spmd", kind="distributed")
def spmd(
    *inputs: Spec,
    algorithm: str,
    given: tuple[ShardLayout, ...],
    made: tuple[ShardLayout, ...],
    dtypes: tuple[DType, ...],
    options: Options,
    rank: int,
    number: int,
) -> tuple[Spec, ...]:
    """A rank's parts of an algorithm's outputs, and a token; the last input may be a token."""
    for part, layout in zip(inputs, given, strict=False):
        if part.shape != layout.local_shape(rank):
            refuse_shape(f"a part of shape {layout.local_shape(rank)} on rank {rank}")
    outputs = zip(made, dtypes, strict=True)
    return (*(Spec(layout.local_shape(rank), dtype) for layout, dtype in outputs), TOKEN)


def spmd_attrs(node: Node, variant: Variant) -> dict[str, Any]:
    """Return the attributes of an `spmd` node for a node of whole values, without the rank."""
    return {
        "algorithm": node.op.name,
        "given": variant.inputs,
        "made": variant.outputs,
        "dtypes": tuple(spec.dtype for spec in node.outputs),
        "options": variant.options,
    }


def _bind(call: Call) -> Runner:
    attrs = call.node.attrs
    algorithm, given, made = ALGORITHMS[attrs["algorithm"]], attrs["given"], attrs["made"]
    parts, places = call.inputs[: len(given)], call.outputs[: len(made)]

    def run() -> None:
        comm = SingleProcess() if call.communicator is None else call.communicator
        if algorithm.run_into is not None:
            algorithm.run_into(places, parts, given, made, attrs["options"], comm)
            return
        found = algorithm.run(parts, given, made, attrs["options"], comm)
        for place, part in zip(places, found, strict=True):
            np.copyto(place, part)

    return run


TABLE.add(Kernel("spmd", "cpu", "messages", _bind, capturable=False, measured=False))
