"""Cholesky factors of one large matrix, panel by panel.

A panel of L is what is left of the matrix times the inverse of a block on the diagonal. That the
inverse is rounded would show where the block is ill-conditioned; one step of refinement, two more
small products, takes that back.
"""

from __future__ import annotations

from functools import partial

from caldera.core.graph.node import Node, Spec
from caldera.kernels.cuda.linalg import cusolver
from caldera.kernels.cuda.linalg.panels import (
    GROUP,
    PANEL,
    Panels,
    can_run,
    panel_bytes,
    panels,
    seconds,
)
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

_COLUMN_SECONDS, _FLOPS = 5e-7, 2e13
_STRIP = 1024
"""Columns of the rest that one product updates: what it writes above the diagonal is wasted."""


def _bind(call: Call) -> Runner:
    (out,), (a,) = call.outputs, call.inputs
    n = len(a)
    run = Panels(call)
    rest, inverse = run.array((n, n), a.dtype), run.array((PANEL, PANEL), a.dtype)
    run.symmetric_part(rest, out, a)
    for first, last in panels(0, n, GROUP):
        for begin, end in panels(first, last):
            block, across = out[begin:end, begin:end], inverse[: end - begin, : end - begin].T
            run.cholesky(block, inverse, rest[begin:end, begin:end])
            below, panel = rest[end:, begin:end], out[end:, begin:end]
            run.multiply(panel, below, across)
            run.multiply(below, panel, block.T, alpha=-1.0, beta=1.0)
            run.multiply(panel, below, across, beta=1.0)
            inside = out[end:last, begin:end].T
            run.multiply(rest[end:, end:last], panel, inside, alpha=-1.0, beta=1.0)
        _update(run, rest[last:, last:], out[last:, first:last])
    return run.runner(partial(cusolver.bind, call))


def _update(run: Panels, rest: Array, columns: Array) -> None:
    """rest -= columns columnsᵀ, on and below the diagonal."""
    for begin, end in panels(0, len(rest), _STRIP):
        left, right = columns[begin:], columns[begin:end].T
        run.multiply(rest[begin:, begin:end], left, right, alpha=-1.0, beta=1.0)


def _workspace(node: Node) -> int:
    given = node.inputs[0].spec
    return panel_bytes(given, Spec((PANEL, PANEL), given.dtype))


TABLE.add(
    Kernel(
        "cholesky",
        "cuda",
        "blocked",
        _bind,
        can_run,
        _workspace,
        estimate=partial(seconds, _COLUMN_SECONDS, _FLOPS),
        capturable=False,
        measured=False,
    )
)
