"""QR of one large matrix, panel by panel, by products instead of reflections.

A panel is made orthonormal by Cholesky QR: P = Q Lᵀ with L Lᵀ = Pᵀ P. That loses the square of the
panel's condition, so it is done twice, which is enough wherever the first time was not all wrong:
then the second factor is near the identity (Yamamoto et al., Roundoff error analysis of the
CholeskyQR2 algorithm, 2015). Columns behind it are made orthogonal to it at once (block
Gram-Schmidt). Rounding leaves of each panel something in those behind, the more the worse the
condition of the matrix is:

- float64: a panel is projected again between its two factorisations (Barlow and Smoktunowicz,
  Reorthogonalized block classical Gram-Schmidt, 2013).
- float32: all is computed in float64, where what is left is too little to be seen, but for matrices
  that are singular in float32. A vector tells these.

Where a check fails, as for matrices without full rank, the library's reflections serve instead. The
diagonal of R is positive by itself.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from caldera.core.graph.node import Node, Spec
from caldera.core.tensor.dtype import float32, float64
from caldera.kernels.cuda.codegen.signature import const_pointer, pointer, real, u32
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

_LEAST = 1e-10, 0.25
"""The square of how much of a column is not in those before it in its panel, the first time and the
second. Below the one, two products with the inverse are not exact any more; the other is 1 but for
rounding, if all is well."""
_MOST = 4 * float(np.finfo("float32").eps)
"""By how much a component of a vector of 1 and -1 may change: reflections in float32 change it by
more."""
_COLUMN_SECONDS, _FLOPS = 1.6e-6, 4e13
_THREADS = 256


def _bind(call: Call) -> Runner:
    (q, r), (a,) = call.outputs, call.inputs
    m, n = a.shape
    k = min(m, n)
    narrow = a.dtype == float32
    run = Panels(call)
    rest = run.array((m, n), float64)
    gram, inverse, first, second = (run.array((PANEL, PANEL), float64) for _ in range(4))
    panel, spare = run.array((m, PANEL), float64), run.array((k, PANEL), float64)
    strip = run.array((GROUP, n), float64) if narrow else r
    (run.convert if narrow else run.copy)(rest, a)
    run.clear(r)
    for start, last in panels(0, k, GROUP):
        rows = strip[: last - start] if narrow else r[start:last]
        for begin, end in panels(start, last):
            width = end - begin
            lower, again = first[:width, :width], second[:width, :width]
            square, across = gram[:width, :width], inverse[:width, :width].T
            given, held = rest[:, begin:end], panel[:, :width]
            run.multiply(square, given.T, given)
            run.cholesky(lower, inverse, square, _LEAST[0])
            run.multiply(held, given, across)
            if not narrow:
                # That the inverse is rounded shows where the panel is ill-conditioned.
                run.multiply(given, held, lower.T, alpha=-1.0, beta=1.0)
                run.multiply(held, given, across, beta=1.0)
                before, left = rest[:, :begin], spare[:begin, :width]
                run.multiply(left, before.T, held)
                run.multiply(held, before, left, alpha=-1.0, beta=1.0)
                run.multiply(r[:begin, begin:end], left, lower.T, beta=1.0)
            run.multiply(square, held.T, held)
            run.cholesky(again, inverse, square, _LEAST[1])
            run.multiply(given, held, across)
            own = rows[begin - start : end - start]
            run.multiply(own[:, begin:end], again.T, lower.T)
            _project(run, own[:, end:last], rest[:, end:last], given)
        _project(run, rows[:, last:], rest[:, last:], rest[:, start:last])
        if narrow:
            for begin, end in panels(start, last):
                run.convert(r[begin:end, begin:], rows[begin - start : end - start, begin:])
    if narrow:
        _check(run, rest[:, :k], panel, spare)
    (run.convert if narrow else run.copy)(q, rest[:, :k])
    return run.runner(partial(cusolver.bind, call))


def _project(run: Panels, parts: Array, rest: Array, q: Array) -> None:
    """Take out of columns what lies in those of Q, and keep how much that is."""
    run.multiply(parts, q.T, rest)
    run.multiply(rest, q, parts, alpha=-1.0, beta=1.0)


def _check(run: Panels, q: Array, panel: Array, spare: Array) -> None:
    """Fail if Qᵀ Q changes a vector."""
    m, k = q.shape
    memory, image = spare.reshape(-1), panel.reshape(-1)[:m].reshape(m, 1)
    tried, found = memory[:k].reshape(k, 1), memory[k : 2 * k].reshape(k, 1)
    blocks = -(-k // _THREADS)
    run.launch(
        "try_vector",
        blocks,
        _THREADS,
        {"out": pointer(tried), "n": u32(k)},
        "write_tried_vector(out, n, 1);",
    )
    run.multiply(image, q, tried)
    run.multiply(found, q.T, image)
    run.launch(
        "check_vector",
        blocks,
        _THREADS,
        {
            "given": const_pointer(found),
            "n": u32(k),
            "most": real("double", _MOST),
            "failed": pointer(run.failed),
        },
        "check_tried_vector(given, n, most, failed);",
    )


def _workspace(node: Node) -> int:
    given = node.inputs[0]
    m, n = given.shape
    k = min(m, n)
    squares = [Spec((PANEL, PANEL), float64)] * 4
    strip = [Spec((GROUP, n), float64)] if given.dtype == float32 else []
    columns = Spec((m, PANEL), float64), Spec((k, PANEL), float64)
    return panel_bytes(Spec((m, n), float64), *squares, *columns, *strip)


TABLE.add(
    Kernel(
        "qr",
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
