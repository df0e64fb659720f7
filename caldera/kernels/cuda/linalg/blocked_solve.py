"""Equations with one large matrix and few right sides: elimination without exchanges of rows.

To look for a pivot in every column is what takes the library most of its time. A matrix whose
quarters were mixed at random from both sides (butterfly.cuh) needs no pivots, but for bad luck;
what that costs in accuracy, refinement gives back (Baboulin et al., 2013; MAGMA's gesv_rbt).
Everything is computed in float64. A solution counts as soon as its residual is that of a matrix
changed by rounding; where none gets there, or the matrix may be singular, the library serves.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from caldera.core.graph.node import Node, Spec
from caldera.core.tensor.dtype import float64
from caldera.kernels.cuda.codegen.signature import const_pointer, pointer, type_of, u32
from caldera.kernels.cuda.linalg import cusolver
from caldera.kernels.cuda.linalg.panels import (
    GROUP,
    PANEL,
    Panels,
    can_run,
    panel_bytes,
    panels,
    seconds,
    strides_of,
)
from caldera.kernels.cuda.runtime.launch import CudaRunner
from caldera.kernels.cuda.runtime.libraries import cupy_array
from caldera.kernels.table import TABLE, Array, Call, Kernel

MOST_COLUMNS = 16
"""Right sides: residuals are computed for one after the other."""
MOST_REFINEMENTS = 3
SINGULAR = 1e-12
"""The inverse of a condition below which a matrix may as well be singular, in float32 the rounding
of a number: the library knows."""
_SURE = 1e-12
"""A tolerance below which the first solution never counts: it is refined without asking."""
_COLUMN_SECONDS, _FLOPS = 9e-7, 5e13
_THREADS = 128


class _Elimination(Panels):
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
            -(-n // _THREADS),
            _THREADS,
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
            (-(-groups // _THREADS), groups, 1),
            _THREADS,
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
        """Take L times U out of what is left."""
        out, left, right = (
            self.mixed[rows, columns],
            self.mixed[rows, between],
            self.mixed[between, columns],
        )
        self.multiply(out, left, right, alpha=-1.0, beta=1.0)

    def solve(self, right: Array, *, adds: bool) -> None:
        """x = the solution for a right side, or that and what it was."""
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
            (-(-groups // _THREADS), columns, 1),
            _THREADS,
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
            -(-n // (_THREADS // 32)),
            _THREADS,
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
        """What runs the calls so far; others are begun."""
        found, self.calls = self.calls, []
        return CudaRunner(found)


class SolveRunner(CudaRunner):
    """Solves, and refines until a solution counts: the host waits to know."""

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
        """The residual beside |a| |x|, and what the condition of the matrix is at least."""
        residual, x, sizes, b = self._results
        reach = sizes.max() * abs(x).max(axis=0)
        error = (abs(residual).max(axis=0) / reach).max()
        return float(error), float((reach / abs(b).max(axis=0)).max())


def _supports(node: Node) -> bool:
    is_one = len(node.inputs[1].shape) == 2
    return can_run(node) and is_one and 0 < node.inputs[1].shape[-1] <= MOST_COLUMNS


def _workspace(node: Node) -> int:
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
        _workspace,
        estimate=partial(seconds, _COLUMN_SECONDS, _FLOPS),
        capturable=False,
        measured=False,
    )
)
