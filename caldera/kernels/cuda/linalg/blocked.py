"""Blocked Cholesky, QR and linear solve for a single large matrix.

**Cholesky.** A panel of L is the remaining matrix times the inverse of a diagonal block. The
rounding of the inverse would show for ill-conditioned blocks; one step of refinement, two more
small products, corrects it.

**QR.** Products replace reflections. A panel is orthonormalised by Cholesky QR: P = Q Lᵀ with L Lᵀ
= Pᵀ P. That loses the square of the panel's condition, so it is done twice. Two passes suffice
unless the first pass was entirely wrong: the second factor is near the identity (Yamamoto et al.,
Roundoff error analysis of the CholeskyQR2 algorithm, 2015). Columns behind it are orthogonalised
against it immediately (block Gram-Schmidt). Rounding leaves a component of each panel in the later
ones, the larger the worse the condition of the matrix:

- float64: a panel is projected again between its two factorisations (Barlow and Smoktunowicz,
  Reorthogonalized block classical Gram-Schmidt, 2013).
- float32: everything is computed in float64, so the remainder is negligible except for matrices
  that are singular in float32. A vector detects these.

If a check fails, as for matrices without full rank, the library's reflections are used instead. The
diagonal of R is positive by construction.

**Solve.** Elimination without row exchanges, for few right-hand sides. The pivot search in every
column takes most of the library's time. A matrix mixed by random butterflies from both sides
(butterfly.cuh) needs no pivots, except with bad luck; refinement restores the lost accuracy
(Baboulin et al., 2013; MAGMA's gesv_rbt). Everything is computed in float64. A solution is accepted
as soon as its residual is as small as rounding of the matrix explains; if none is, or the matrix
may be singular, the library is used.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from caldera.core.graph.node import Node, Spec
from caldera.core.tensor.dtype import float32, float64
from caldera.kernels.cuda.codegen.kernel import (
    CudaRunner,
    const_pointer,
    pointer,
    real,
    type_of,
    u32,
)
from caldera.kernels.cuda.linalg import cusolver
from caldera.kernels.cuda.linalg.panels import (
    GROUP,
    PANEL,
    PanelCalls,
    can_run,
    panel_bytes,
    panels,
    seconds,
    strides_of,
)
from caldera.kernels.cuda.runtime.device import cupy_array
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

_COLUMN_SECONDS, _FLOPS = 5e-7, 2e13
_STRIP = 1024
"""Columns of the rest that one product updates; the part it writes above the diagonal is wasted."""


def _bind(call: Call) -> Runner:
    (out,), (a,) = call.outputs, call.inputs
    n = len(a)
    run = PanelCalls(call)
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


def _update(run: PanelCalls, rest: Array, columns: Array) -> None:
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


_LEAST = 1e-10, 0.25
"""Minimum squared share of a column not in previous columns of its panel, in each of two passes.

Below the first limit, two products with the inverse are no longer exact. In the second pass the
share is 1 up to rounding if the first pass succeeded.
"""
_MOST = 4 * float(np.finfo("float32").eps)
"""Maximum change of a component of a vector of 1 and -1; reflections in float32 change it by more.
"""
_BLOCKED_QR_COLUMN_SECONDS, _BLOCKED_QR_FLOPS = 1.6e-6, 4e13
_THREADS = 256


def _blocked_qr_bind(call: Call) -> Runner:
    (q, r), (a,) = call.outputs, call.inputs
    m, n = a.shape
    k = min(m, n)
    narrow = a.dtype == float32
    run = PanelCalls(call)
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


def _project(run: PanelCalls, parts: Array, rest: Array, q: Array) -> None:
    """Remove from columns their projection on the columns of Q, and store its coefficients."""
    run.multiply(parts, q.T, rest)
    run.multiply(rest, q, parts, alpha=-1.0, beta=1.0)


def _check(run: PanelCalls, q: Array, panel: Array, spare: Array) -> None:
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


def _blocked_qr_workspace(node: Node) -> int:
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
        _blocked_qr_bind,
        can_run,
        _blocked_qr_workspace,
        estimate=partial(seconds, _BLOCKED_QR_COLUMN_SECONDS, _BLOCKED_QR_FLOPS),
        capturable=False,
        measured=False,
    )
)


MOST_COLUMNS = 16
"""Maximum number of right-hand sides: residuals are computed for each sequentially."""
MOST_REFINEMENTS = 3
SINGULAR = 1e-12
"""Reciprocal condition below which a matrix may be singular, in float32 within rounding.

The library decides such cases.
"""
_SURE = 1e-12
"""A tolerance below which the first solution never counts: it is refined without asking."""
_BLOCKED_SOLVE_COLUMN_SECONDS, _BLOCKED_SOLVE_FLOPS = 9e-7, 5e13
_BLOCKED_SOLVE_THREADS = 128


class _Elimination(PanelCalls):
    """A mixed matrix, L below its diagonal and U above it, and blocks on it inverted."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        (self.out,), (self.a, b) = call.outputs, call.inputs
        n, columns = len(b), b.shape[1] + 1
        self.mixed = self.array((n, n), float64)
        self.inverses = self.array((len(panels(0, n)), PANEL, PANEL), float64)
        self.panel = self.array((n, PANEL), float64)
        self.b, self.right, self.solved, self.x, self.residual = (
            self.array((n, columns), float64) for _ in range(5)
        )
        self.sizes = self.array((n,), float64)
        (self.copy if b.dtype == float64 else self.convert)(self.b[:, :-1], b)
        # One more right side, that no singular matrix has a solution for but by great chance.
        self.launch(
            "try_vector",
            -(-n // _BLOCKED_SOLVE_THREADS),
            _BLOCKED_SOLVE_THREADS,
            {
                "out": pointer(self.b[:, -1]),
                "n": u32(n),
                "columns": u32(columns),
            },
            "write_tried_vector(out, n, columns);",
        )

    def factorise(self) -> None:
        """U with the blocks on the diagonal, and L, which has the identity there."""
        n = len(self.a)
        groups = n // 4 + n % 4
        self.launch(
            "mix_matrix",
            (-(-groups // _BLOCKED_SOLVE_THREADS), groups, 1),
            _BLOCKED_SOLVE_THREADS,
            {
                "a": const_pointer(self.a),
                **strides_of("a", self.a),
                "out": pointer(self.mixed),
                "n": u32(n),
            },
            f"butterfly_matrix<{type_of(self.a)}, double>({{a, a_down, a_right}}, {{out, n, 1}},"
            " n);",
        )
        for start, last in panels(0, n, GROUP):
            for begin, end in panels(start, last):
                self._eliminate(begin, end, last)
            # What lies right of the group: first its own rows, then all below.
            for begin, end in panels(start, last):
                self._subtract(slice(end, last), slice(begin, end), slice(last, n))
            self._subtract(slice(last, n), slice(start, last), slice(last, n))

    def _eliminate(self, begin: int, end: int, last: int) -> None:
        """A panel of L, and the columns from it to `last` without it."""
        inverse = self.inverses[begin // PANEL]
        below, lower = self.mixed[end:, begin:end], self.panel[end:, : end - begin]
        self.inverse(inverse, self.mixed[begin:end, begin:end])
        self.multiply(lower, below, inverse[: end - begin, : end - begin])
        self.copy(below, lower)
        self._subtract(slice(end, len(self.a)), slice(begin, end), slice(end, last))

    def _subtract(self, rows: slice, between: slice, columns: slice) -> None:
        """Subtract L times U from the remaining matrix."""
        out, left, right = (
            self.mixed[rows, columns],
            self.mixed[rows, between],
            self.mixed[between, columns],
        )
        self.multiply(out, left, right, alpha=-1.0, beta=1.0)

    def solve(self, right: Array, *, adds: bool) -> None:
        """Set x to the solution for a right-hand side, or add the solution to x."""
        self._mix("mix_right", right, self.right, solution=False, adds=False)
        pieces = panels(0, len(self.a))
        for begin, end in pieces:
            below = self.mixed[end:, begin:end]
            self.multiply(self.right[end:], below, self.right[begin:end], alpha=-1.0, beta=1.0)
        for begin, end in reversed(pieces):
            width, found = end - begin, self.solved[begin:end]
            inverse = self.inverses[begin // PANEL, :width, :width]
            self.multiply(found, inverse, self.right[begin:end])
            above = self.mixed[:begin, begin:end]
            self.multiply(self.right[:begin], above, found, alpha=-1.0, beta=1.0)
        self._mix("mix_solution", self.solved, self.x, solution=True, adds=adds)

    def _mix(self, name: str, given: Array, out: Array, *, solution: bool, adds: bool) -> None:
        n, columns = given.shape
        groups = n // 4 + n % 4
        kinds = f"{str(solution).lower()}, {type_of(given)}, double"
        self.launch(
            name,
            (-(-groups // _BLOCKED_SOLVE_THREADS), columns, 1),
            _BLOCKED_SOLVE_THREADS,
            {
                "given": const_pointer(given),
                **strides_of("given", given),
                "out": pointer(out),
                "n": u32(n),
                "columns": u32(columns),
                "adds": u32(adds),
            },
            f"butterfly_columns<{kinds}>({{given, given_down, given_right}}, {{out, columns, 1}}, "
            "n, adds);",
        )

    def subtract(self) -> None:
        """The residual of x, and the sum of magnitudes of each row of the matrix."""
        n, columns = self.b.shape
        self.launch(
            "residual",
            -(-n // (_BLOCKED_SOLVE_THREADS // 32)),
            _BLOCKED_SOLVE_THREADS,
            {
                "a": const_pointer(self.a),
                **strides_of("a", self.a),
                "b": const_pointer(self.b),
                "x": const_pointer(self.x),
                "residual": pointer(self.residual),
                "sizes": pointer(self.sizes),
                "n": u32(n),
                "columns": u32(columns),
            },
            f"warp_residual<{type_of(self.a)}>({{a, a_down, a_right}}, {{b, columns, 1}},"
            " {x, columns, 1}, {residual, columns, 1}, sizes, n, columns);",
        )

    def taken(self) -> CudaRunner:
        """Return a runner of the calls so far, and start a new list of calls."""
        found, self.calls = self.calls, []
        return CudaRunner(found)


class SolveRunner(CudaRunner):
    """Runner that solves and refines until a solution is accepted; the host waits for the
    residuals.
    """

    def __init__(self, call: Call) -> None:
        made = _Elimination(call)
        made.factorise()
        made.solve(made.b, adds=False)
        made.subtract()
        self._first = made.taken()
        made.solve(made.residual, adds=True)
        made.subtract()
        self._refine = made.taken()
        (made.copy if made.out.dtype == float64 else made.convert)(made.out, made.x[:, :-1])
        self._finish = made.taken()
        super().__init__([*self._first.calls, *self._refine.calls, *self._finish.calls])
        self._results = [cupy_array(each) for each in (made.residual, made.x, made.sizes, made.b)]
        self._tolerance = float(np.finfo(made.a.dtype).eps)
        self._otherwise = partial(cusolver.bind, call)

    def __call__(self) -> None:
        self._first()
        if self._tolerance < _SURE:
            self._refine()
        for left in reversed(range(MOST_REFINEMENTS + 1)):
            error, condition = self._judged()
            if not condition * max(SINGULAR, self._tolerance) < 1:
                break
            if error <= self._tolerance:
                self._finish()
                return
            if left:
                self._refine()
        self._otherwise()()

    def _judged(self) -> tuple[float, float]:
        """Return the residual relative to |a| |x|, and a lower bound of the matrix's condition."""
        residual, x, sizes, b = self._results
        reach = sizes.max() * abs(x).max(axis=0)
        error = (abs(residual).max(axis=0) / reach).max()
        return float(error), float((reach / abs(b).max(axis=0)).max())


def _supports(node: Node) -> bool:
    is_one = len(node.inputs[1].shape) == 2
    return can_run(node) and is_one and 0 < node.inputs[1].shape[-1] <= MOST_COLUMNS


def _blocked_solve_workspace(node: Node) -> int:
    n, columns = node.inputs[1].shape
    blocks = Spec((len(panels(0, n)), PANEL, PANEL), float64)
    sides = [Spec((n, columns + 1), float64)] * 5
    return panel_bytes(
        Spec((n, n), float64), blocks, Spec((n, PANEL), float64), *sides, Spec((n,), float64)
    )


TABLE.add(
    Kernel(
        "solve",
        "cuda",
        "blocked",
        SolveRunner,
        _supports,
        _blocked_solve_workspace,
        estimate=partial(seconds, _BLOCKED_SOLVE_COLUMN_SECONDS, _BLOCKED_SOLVE_FLOPS),
        capturable=False,
        measured=False,
    )
)
