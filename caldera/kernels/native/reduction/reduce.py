"""Reductions over any axes and any layout, and fused bodies, which may end with reductions.

A sum of rows or columns can also be a product with ones, through the BLAS behind NumPy's `dot`,
which is faster for some shapes. Measurements decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from caldera.base.config import settings
from caldera.core.graph import Body, Node
from caldera.core.tensor.dtype import BY_NAME, float32, float64
from caldera.core.tensor.shape import Shape, size
from caldera.kernels.common.loops import (
    MOST_TERMS,
    REDUCTIONS,
    LoopAxes,
    LoopBody,
    ReductionTask,
    accumulator_dtype,
    axes_of,
    elementwise_outputs,
    fused_tasks,
    identity,
    lengths,
    loop_body_of,
    loop_shape,
    with_axes,
)
from caldera.kernels.native.codegen import (
    NativeCall,
    NativeRunner,
    in_sequence,
    offer,
)
from caldera.kernels.native.codegen.matrix_multiply import is_standalone
from caldera.kernels.native.elementwise.loop import (
    loop_calls,
    outer_axes,
    strided_arrays,
    widths,
    workers,
)
from caldera.kernels.native.elementwise.operations import is_known
from caldera.kernels.native.reduction import kernels
from caldera.kernels.reference.evaluation import by_decomposition
from caldera.kernels.table import Call, Runner

LONGEST_ROW, MOST_ROWS = 1 << 13, 256
"""Size of a stretch of a long reduction: elements of a row, and rows combined column by column.

A second stage reduces the results of the stretches.
"""
_LINE = 16
"""Number of elements of four bytes in a cache line."""
SHORT_ROW, LONG_ROW = 64, 256
"""Elements: rows shorter than the first are reduced as longer ones, of no more than the second."""
WORTH_JOINING = 1 << 12
"""Minimum number of elements of a loop for which joining short rows pays."""


def reduction_calls(task: ReductionTask) -> list[NativeCall]:
    """Return the calls that run a loop with reductions, over at least one element."""
    arrays = [*task.inputs, *task.outputs, *task.results]
    loop = axes_of(task.shape, arrays, task.axes)
    if loop.reduced[-1]:
        return _along(task, loop, arrays)
    return _across(task, loop, arrays)


def _modes(task: ReductionTask, loop: LoopAxes, arrays: Sequence[np.ndarray], results: str) -> str:
    fixed = len(task.inputs)
    modes = [
        "1"
        if each[-1] == array.itemsize or loop.lengths[-1] == 1
        else "0"
        if each[-1] == 0 and index < fixed
        else "s"
        for index, (each, array) in enumerate(zip(loop.strides, arrays, strict=True))
    ]
    plain = len(arrays) - len(task.results)
    return "".join(modes[:plain]) + results


def _partial_results(task: ReductionTask, shape: Shape) -> list[np.ndarray]:
    return [
        np.empty(shape, BY_NAME[accumulator_dtype(op, dtype)])
        for op, dtype, _ in task.loop_body.reductions
    ]


def _finish(
    task: ReductionTask, partial: list[np.ndarray], shape: Shape, loop: LoopAxes
) -> list[NativeCall]:
    """Reduce the output of the first kernel over its remaining axes and stretches."""
    calls: list[NativeCall] = []
    left = tuple(axis for axis, reduced in enumerate(loop.reduced) if reduced)
    first = len(task.inputs) + len(task.outputs)
    for index, ((op, dtype, _), array) in enumerate(
        zip(task.loop_body.reductions, partial, strict=True)
    ):
        name = accumulator_dtype(op, dtype)
        loop_body = LoopBody((name,), (), (), ((op, name, ("in", 0)),))
        result = _as_seen(task.results[index], shape, loop, loop.strides[first + index])
        calls += reduction_calls(ReductionTask(loop_body, shape, left, [array], [], [result]))
    return calls


def _as_seen(
    result: np.ndarray, shape: Shape, loop: LoopAxes, strides: Sequence[int]
) -> np.ndarray:
    """Return a result with one axis per axis of the loop; reduced axes have length 1."""
    lengths = [1 if reduced else n for n, reduced in zip(shape, loop.reduced, strict=True)]
    return np.lib.stride_tricks.as_strided(result, lengths, strides)


def _along(task: ReductionTask, loop: LoopAxes, arrays: list[np.ndarray]) -> list[NativeCall]:
    outer, inner = loop.lengths[:-1], loop.lengths[-1]
    stretch = LONGEST_ROW if inner >= 2 * LONGEST_ROW else inner
    stretches = -(-inner // stretch)
    direct = stretches == 1 and not any(loop.reduced[:-1])
    strides = [list(each) for each in loop.strides]
    first = len(task.inputs) + len(task.outputs)
    results = list(task.results)
    shape = (*outer, stretches)
    if not direct:
        results = _partial_results(task, shape)
        strides[first:] = [list(each.strides) for each in results]
    modes = _modes(task, loop, arrays, "1" * len(results))
    rows = size(outer)
    call = kernels.along.call(
        operands=strided_arrays([*arrays[:first], *results], strides),
        outer=outer_axes(range(len(outer)), outer, strides),
        rows=rows,
        inner=inner,
        stretch=stretch,
        loop_body=task.loop_body,
        modes=modes,
        widths=widths(task.loop_body, stretch, modes),
        parts=min(workers(task.loop_body, rows * inner), rows * stretches),
    )
    return [call] if direct else [call, *_finish(task, results, shape, loop)]


def _across(task: ReductionTask, loop: LoopAxes, arrays: list[np.ndarray]) -> list[NativeCall]:
    if not any(loop.reduced):
        # An axis of length 1 was reduced, and is gone.
        loop = LoopAxes(
            (1, *loop.lengths), (True, *loop.reduced), tuple((0, *each) for each in loop.strides)
        )
    chosen = max(axis for axis, reduced in enumerate(loop.reduced) if reduced)
    # Move the chosen axis next to the innermost one; the order of the outer axes does not matter.
    loop = _moved(loop, chosen)
    *outer, length, columns = loop.lengths
    first = len(task.inputs) + len(task.outputs)
    together = _rows_together(loop, arrays[:first])
    strides = [[*each[:-2], each[-2] * together, each[-1]] for each in loop.strides]
    length, columns = length // together, columns * together
    stretch = MOST_ROWS if length >= 2 * MOST_ROWS else length
    stretches = -(-length // stretch)
    direct = stretches == together == 1 and not any(loop.reduced[:-2])
    results = list(task.results)
    shape = (*outer, stretches, columns)
    if not direct:
        results = _partial_results(task, shape)
        strides[first:] = [list(each.strides) for each in results]
    result_modes = "".join(
        "1" if each[-1] == array.itemsize or columns == 1 else "s"
        for each, array in zip(strides[first:], results, strict=True)
    )
    modes = _modes(task, loop, arrays, result_modes)
    rows = size(tuple(outer))
    parts = workers(task.loop_body, rows * length * columns)
    call = kernels.across.call(
        operands=strided_arrays([*arrays[:first], *results], strides),
        outer=outer_axes(range(len(outer)), outer, strides),
        rows=rows,
        columns=columns,
        length=length,
        stretch=stretch,
        width=_group_width(columns, -(-parts // (rows * stretches))),
        strides=[each[-2] for each in strides],
        loop_body=task.loop_body,
        modes=modes,
        widths=widths(task.loop_body, columns, modes),
        parts=parts,
    )
    if direct:
        return [call]
    if together > 1:
        loop = _with_rows_apart(loop, together)
        shape = (*outer, stretches, together, columns // together)
    return [call, *_finish(task, [each.reshape(shape) for each in results], shape, loop)]


# --- short rows, as those of a sum for each of a few channels that are last in memory


def _rows_together(loop: LoopAxes, arrays: Sequence[np.ndarray]) -> int:
    """Return the number of short rows to reduce as one long row; 1 if joining is not useful.

    The parts of the long row are combined at the end, so that vectors span the ends of short rows.
    The result is 1 if rows are long or do not continue in the next row.
    """
    *_, length, columns = loop.lengths
    for array, strides in zip(arrays, loop.strides[: len(arrays)], strict=True):
        goes_on = strides[-1] == array.itemsize and strides[-2] == columns * strides[-1]
        if not goes_on and any(strides[-2:]):
            return 1
    if columns >= SHORT_ROW or length * columns < WORTH_JOINING:
        return 1
    # At least two long rows: with a single one, the second stage would be the whole reduction.
    most = max(1, min(LONG_ROW // columns, length // 2))
    return max(n for n in range(1, most + 1) if length % n == 0)


def _with_rows_apart(loop: LoopAxes, together: int) -> LoopAxes:
    """Return the loop with an axis more, of the rows that were reduced as one."""
    return LoopAxes(
        (*loop.lengths[:-2], loop.lengths[-2] // together, together, loop.lengths[-1]),
        (*loop.reduced[:-1], True, loop.reduced[-1]),
        tuple((*each[:-2], each[-2] * together, *each[-2:]) for each in loop.strides),
    )


def _group_width(columns: int, groups: int) -> int:
    """Return the columns per group of a worker: equal groups, in whole cache lines."""
    groups = max(groups, -(-columns // kernels.COLUMNS))
    each = -(-columns // groups)
    return min(-(-each // _LINE) * _LINE, kernels.COLUMNS)


def _moved(loop: LoopAxes, axis: int) -> LoopAxes:
    """Return the loop with an axis put before the innermost one."""
    order = [each for each in range(len(loop.lengths)) if each != axis]
    order.insert(len(order) - 1, axis)

    def sort(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(values[each] for each in order)

    return LoopAxes(
        sort(loop.lengths),
        tuple(loop.reduced[each] for each in order),
        tuple(sort(each) for each in loop.strides),
    )


def fill_with_nothing(node: Node, result: np.ndarray) -> Runner:
    """Fill the result of a reduction over no elements."""
    return lambda: result.fill(identity(node.op.name, node.dtype.name))


def bind(call: Call) -> Runner:
    """Bind a reduction that is not fused."""
    node, (x,), (out,) = call.node, call.inputs, call.outputs
    if not out.size:
        return NativeRunner([])
    if not x.size:
        return fill_with_nothing(node, out)
    axes = node.attrs["axis"]
    result = with_axes(out, axes, x.ndim)
    return NativeRunner(
        reduction_calls(ReductionTask(loop_body_of(node), x.shape, axes, [x], [], [result]))
    )


offer(sorted(REDUCTIONS), "native", bind, supports=is_known, priority=10)


# --- fused bodies


def _bind_fused(call: Call) -> Runner:
    body: Body = call.node.attrs["body"]
    shape = loop_shape(call.node)
    if not size(shape):
        # A loop over no elements still has to write the results of its reductions.
        return in_sequence(
            fill_with_nothing(part, array)
            for array, part in zip(call.outputs, body.outputs, strict=True)
            if part.op.kind == "reduction" and array.size
        )
    tasks = fused_tasks(call)
    if not tasks:
        body_of_loop = loop_body_of(call.node)
        return NativeRunner(loop_calls(body_of_loop, shape, call.inputs, elementwise_outputs(call)))
    return NativeRunner([each for task in tasks for each in reduction_calls(task)])


offer(
    "fused",
    "native",
    _bind_fused,
    supports=is_known,
    priority=10,
    in_place=lambda node: all(
        output.op.kind == "elementwise" for output in node.attrs["body"].outputs
    ),
)
# Op by op: for user-defined ops without rules for compilation.
by_decomposition("fused")


WORTH_A_CALL = 1 << 14
"""Number of elements from which on the overhead of a NumPy call is acceptable.

Such a call also ends a sequence of native kernels, a cost not seen when it is timed in isolation.
"""


# --- a product with ones


def _is_product(node: Node) -> bool:
    found = lengths(node)
    if found is None or node.dtype not in (float32, float64) or is_standalone():
        return False
    results, terms, _ = found
    is_exact = node.dtype == float64 or terms <= MOST_TERMS or settings.accuracy == "fast"
    return is_exact and terms > 1 and results * terms >= WORTH_A_CALL


def _bind_product(call: Call) -> Runner:
    (x,), (out,) = call.inputs, call.outputs
    if not (x.flags.c_contiguous and out.flags.c_contiguous):
        return bind(call)
    found = lengths(call.node)
    assert found is not None
    results, terms, is_last = found
    ones = np.ones(terms, x.dtype)
    if is_last:
        return partial(np.dot, x.reshape(results, terms), ones, out.reshape(results))
    return partial(np.dot, ones, x.reshape(terms, results), out.reshape(results))


offer(
    "sum", "product with ones", _bind_product, _is_product, priority=7, serial=True, source="numpy"
)
