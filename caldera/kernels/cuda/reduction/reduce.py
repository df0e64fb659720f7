"""Reductions on a GPU: loops over any axes and any layout, and products with a row of ones.

A loop is a separate launch or part of a fused body. Its division depends only on its shape, never
on the GPU. Results are the same everywhere and from run to run.

Sums of columns may also be products with a row of ones. cuBLASLt has kernels for them that need
only one launch, where a loop in parts needs two. These read a matrix at the speed of its memory.
They add up in float32, so only short sums use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod
from weakref import WeakValueDictionary

import numpy as np

from caldera.base.config import settings
from caldera.core.graph import Node, Spec, detached
from caldera.core.memory import device
from caldera.core.memory.gpus import card_count
from caldera.core.tensor import DType, Shape, bfloat16, float16, float32, size
from caldera.kernels.common.binding import workspace_limit
from caldera.kernels.common.loops import (
    MOST_TERMS,
    REDUCTIONS,
    LoopAxes,
    LoopBody,
    ReductionTask,
    axes_of,
    lengths,
    loop_body_of,
    with_axes,
)
from caldera.kernels.cuda.codegen import (
    CudaRunner,
    KernelLaunch,
    LaunchIntegers,
    LoopOperand,
    is_wide,
    lanes_for,
    next_power_of_two,
    operand,
    unless_empty,
)
from caldera.kernels.cuda.elementwise.loop import THREADS, is_light, loop_calls
from caldera.kernels.cuda.product import cublas
from caldera.kernels.cuda.product.problem import Multiplication, described
from caldera.kernels.cuda.reduction.source import Cut, ReductionLoop, join_source, reduce_source
from caldera.kernels.cuda.runtime import device as libraries
from caldera.kernels.cuda.runtime.cublaslt import RANKS
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

MOST_THREADS = 1024
PLENTY = 1 << 16
"""Number of threads that keep a GPU busy: with fewer totals, more threads share each total."""
ENOUGH_BLOCKS = 1 << 10
"""Number of blocks that keep a GPU busy: with fewer, reduced axes are split into parts."""
LONGEST_ROW, SHORTEST_PART = 1 << 16, 1 << 14
"""Elements of a row that one block reduces, and the least that are worth a part."""
MOST_ROWS, FEWEST_ROWS, ROW_BLOCKS = 512, 16, 512
"""The same limits for rows reduced column by column, and the sufficient number of blocks for them.

With more blocks, the second launch would take longer than they save.
"""
BUSY_ROWS, FEWEST_BUSY_ROWS = 128, 32
"""The same limits for a loop whose work per element exceeds the reduction."""
COLUMNS, MOST_LANES = 32, 16
"""Number of adjacent items of a block, and the maximum number of elements per item."""
NARROW, NARROW_ROWS, NARROW_BLOCKS, NARROW_ELEMENTS = 2, 4096, 48, 1 << 18
"""Limits of blocks with few columns, which need no parts.

They are the adjacent items of a block, the maximum number of its rows, the number of blocks that
are as good as more blocks with a second launch, and the maximum number of elements.
"""


def _parts(kept: int, reduced: int, lanes: int = 1, *, along: bool, busy: bool) -> int:
    """Return the maximum number of parts of the reduced elements, in items of `lanes` elements."""
    if along:
        if reduced <= LONGEST_ROW:
            return 1
        return min(-(-reduced // SHORTEST_PART), max(ENOUGH_BLOCKS // kept, 1))
    most, fewest, blocks = (
        (BUSY_ROWS, FEWEST_BUSY_ROWS, ENOUGH_BLOCKS)
        if busy
        else (MOST_ROWS, FEWEST_ROWS, ROW_BLOCKS)
    )
    if reduced <= most:
        return 1
    columns = -(-kept // (lanes * COLUMNS))
    return min(-(-reduced // fewest), max(blocks // columns, 1))


def _is_narrow(kept: int, reduced: int, lanes: int) -> bool:
    """Return True if blocks of few columns need no parts; `kept` counts items."""
    is_small = kept * lanes * reduced <= NARROW_ELEMENTS
    return is_small and MOST_ROWS < reduced <= NARROW_ROWS and kept >= NARROW * NARROW_BLOCKS


def _total_bytes(op: str) -> int:
    return 16 if op.startswith("arg") else 8


def _is_busy(loop: ReductionLoop) -> bool:
    """Return True if a loop computes much and also writes elements: few blocks would take long."""
    return bool(loop.loop_body.heavy) and len(loop.operands) > len(loop.loop_body.inputs)


def workspace_of(
    shape: Shape, axes: Sequence[int], ops: Sequence[str], *, busy: bool = False
) -> int:
    """Bytes that the parts' totals take: the layout, which may differ, decides on their number."""
    reduced = prod(shape[axis] for axis in axes)
    kept = prod(n for axis, n in enumerate(shape) if axis not in axes)
    if not kept or not reduced:
        return 0
    # Not all loops of a busy body are busy.
    parts = max(
        _parts(kept, reduced, MOST_LANES, along=along, busy=some)
        for along in (True, False)
        for some in {False, busy}
    )
    return parts * kept * sum(map(_total_bytes, ops)) if parts > 1 else 0


def reduction_calls(task: ReductionTask, workspace: np.ndarray | None) -> list[KernelLaunch]:
    """Return the launches that run a loop with reductions, over at least one element."""
    plan = planned(task)
    if plan.cut.parts == 1:
        return [first_pass(task, plan, task.results)]
    assert workspace is not None
    places = _places(task.loop_body, workspace, plan.cut.parts * plan.totals)
    return [first_pass(task, plan, places), _joining(task, plan, places)]


@dataclass(frozen=True)
class Planned:
    """Loop with its division into parts, and the threads of a block."""

    loop: ReductionLoop
    cut: Cut
    block: tuple[int, int]

    @property
    def totals(self) -> int:
        """Number of results."""
        return prod(self.loop.lengths[axis] for axis in self.loop.kept)


def planned(task: ReductionTask) -> Planned:
    """Return the plan of a task."""
    arrays = [*task.inputs, *task.outputs]
    axes = axes_of(task.shape, [*arrays, *task.results], task.axes)
    loop, lanes = _loop(task, axes, arrays)
    cut = _cut(loop, lanes)
    block = _block(loop, cut)
    blocks = -(-cut.kept // block[1 if loop.along else 0])
    return Planned(loop, replace(cut, blocks=blocks), block)


def first_pass(task: ReductionTask, plan: Planned, places: Sequence[np.ndarray]) -> KernelLaunch:
    """Return the launch that reads everything; it writes results, or the totals of parts."""
    loop, cut = plan.loop, plan.cut
    numbers = LaunchIntegers(is_wide(size(loop.lengths), loop.operands, loop.lengths))
    arrays = [*task.inputs, *task.outputs]
    source, signature = reduce_source(loop, cut, plan.block, arrays, places, numbers)
    return KernelLaunch(source, "reduce", cut.blocks * cut.parts, (*plan.block, 1), signature)


def _loop(
    task: ReductionTask, axes: LoopAxes, arrays: Sequence[np.ndarray]
) -> tuple[ReductionLoop, int]:
    inner = axes.lengths[-1]
    positions = range(len(axes.lengths))
    kept = tuple(axis for axis in positions if not axes.reduced[axis])
    reduced = tuple(axis for axis in positions if axes.reduced[axis])
    strides = axes.strides[: len(arrays)]
    operands = [operand(*each, inner) for each in zip(arrays, strides, strict=True)]
    results = [
        LoopOperand(
            array.dtype.name,
            tuple(s // array.itemsize for s in ([each[axis] for axis in kept])),
            "s",
        )
        for array, each in zip(task.results, axes.strides[len(arrays) :], strict=True)
    ]
    loop = ReductionLoop(
        task.loop_body, axes.lengths, kept, reduced, operands, results, along=axes.reduced[-1]
    )
    lanes = lanes_for(arrays, operands, inner, exact=True)
    if not loop.along and size(axes.lengths) < PLENTY * lanes:
        # Few elements: rather more threads than more elements a thread.
        lanes = 1
    return loop, lanes


def _cut(loop: ReductionLoop, lanes: int) -> Cut:
    kept = prod(loop.axes(loop.kept, lanes))
    reduced = prod(loop.axes(loop.reduced, lanes))
    all_kept = prod(loop.lengths[axis] for axis in loop.kept)
    all_reduced = prod(loop.lengths[axis] for axis in loop.reduced)
    busy = _is_busy(loop)
    parts = _parts(all_kept, all_reduced, lanes, along=loop.along, busy=busy)
    if not loop.along and not busy and _is_narrow(kept, reduced, lanes):
        parts = 1
    unroll = 1
    if is_light(loop.loop_body):
        unroll = 2 if loop.loop_body.heavy or (lanes > 1 and len(loop.operands) > 2) else 4
    return Cut(lanes, kept, reduced, -(-reduced // parts), 1, unroll)


def _below(n: int) -> int:
    """Return the largest power of 2 that is not above n (at least 1)."""
    return 1 << (max(n, 1).bit_length() - 1)


def _block(loop: ReductionLoop, cut: Cut) -> tuple[int, int]:
    """Return the threads of a block: a power of 2 in either direction, whole warps in all."""
    sharing = _below(cut.chunk // 4)
    if cut.kept * cut.parts * sharing < PLENTY:
        sharing = next_power_of_two(cut.chunk)
    if loop.along:
        width = min(sharing, MOST_THREADS)
        rows = _below(cut.kept // (2 * driver().multiprocessors))
        return width, max(min(rows, THREADS // width), 32 // width, 1)
    if cut.parts == 1 and not _is_busy(loop) and _is_narrow(cut.kept, cut.chunk, cut.lanes):
        return NARROW, MOST_THREADS // NARROW
    width = min(COLUMNS, next_power_of_two(cut.kept))
    most = THREADS if cut.kept * cut.parts >= PLENTY // 8 else MOST_THREADS
    return width, max(min(sharing, most // width), 32 // width)


def _places(loop_body: LoopBody, workspace: np.ndarray, totals: int) -> list[np.ndarray]:
    """Return the memory of the parts' totals, for each reduction in order."""
    found = []
    start = 0
    for op, *_ in loop_body.reductions:
        found.append(workspace[start:])
        start += totals * _total_bytes(op)
    return found


def _joining(task: ReductionTask, plan: Planned, places: Sequence[np.ndarray]) -> KernelLaunch:
    loop, parts, totals = plan.loop, plan.cut.parts, plan.totals
    lengths = [loop.lengths[axis] for axis in loop.kept]
    numbers = LaunchIntegers(is_wide(totals * parts, loop.results, lengths))
    pairs = list(zip(places, task.results, strict=True))
    width = min(COLUMNS, next_power_of_two(totals))
    height = max(min(next_power_of_two(parts), MOST_THREADS // width), 32 // width)
    source, signature = join_source(loop, parts, totals, (width, height), pairs, numbers)
    return KernelLaunch(source, "join", -(-totals // width), (width, height, 1), signature)


# --- what reductions give


def of_nothing(node: Node, result: np.ndarray) -> list[KernelLaunch]:
    """Return the launches that write the result of a reduction over no elements."""
    number = ("number", 1 if node.op.name == "prod" else 0, node.dtype.name)
    return loop_calls(LoopBody((), (), ((node.dtype.name, number),)), result.shape, [], [result])


@unless_empty
def bind(call: Call) -> Runner:
    """Return a runner that computes a reduction as a loop."""
    node, (x,), (out,) = call.node, call.inputs, call.outputs
    if not x.size:
        return CudaRunner(of_nothing(node, out))
    axes = _axes(node)
    task = ReductionTask(loop_body_of(node), x.shape, axes, [x], [], [with_axes(out, axes, x.ndim)])
    return CudaRunner(reduction_calls(task, call.workspace))


def _axes(node: Node) -> tuple[int, ...]:
    axis = node.attrs["axis"]
    return (axis,) if isinstance(axis, int) else axis


def workspace(node: Node) -> int:
    """Return bytes that the loop of a reduction needs."""
    return workspace_of(node.inputs[0].shape, _axes(node), [node.op.name])


for _name in (*sorted(REDUCTIONS), "argmax", "argmin"):
    TABLE.add(Kernel(_name, "cuda", "loop", bind, workspace=workspace))


FEWEST_ELEMENTS = 1 << 16
"""Minimum number of elements; below it, every kernel takes the time of a launch."""


class _Ones:
    """Row of ones on the GPU, kept as long as a product uses it."""

    def __init__(self, terms: int, dtype: DType) -> None:
        # A simulated GPU uses the host's memory.
        place = device(f"cuda:{libraries.current_card()}" if card_count() else "cpu")
        self._block = place.allocate(terms * dtype.itemsize, owner="ones")
        place.copy_in(self._block, 0, np.ones(terms, dtype).view(np.uint8), place.stream)
        place.stream.synchronize()
        self.array: Array = place.array(self._block, 0, (1, terms), dtype)


_known: WeakValueDictionary[tuple[int, int, str], _Ones] = WeakValueDictionary()


def _ones(terms: int, dtype: DType) -> _Ones:
    """Return such a row; products of the same length share it."""
    key = libraries.current_card(), terms, dtype.name
    found = _known.get(key)
    if found is None:
        found = _known[key] = _Ones(terms, dtype)
    return found


class _ProductRunner(CudaRunner):
    """Runner of a product with a row of ones, which it keeps alive."""

    def __init__(self, ones: _Ones, product: Multiplication, call: Call, rank: int) -> None:
        calls = cublas.bind_product(product, call.workspace, rank)
        super().__init__([bind(call)] if calls is None else calls)
        self._ones = ones


def _sides(node: Node) -> tuple[int, int] | None:
    """Return the numbers of terms and results if the reduced axes are the first ones."""
    found = lengths(node)
    if found is None:
        return None
    results, terms, is_last = found
    return None if is_last and results > 1 else (terms, results)


def _bind(rank: int, call: Call) -> Runner:
    (x,), (out,) = call.inputs, call.outputs
    sides = _sides(call.node)
    assert sides is not None
    if not (x.flags.c_contiguous and out.flags.c_contiguous):
        return bind(call)
    ones = _ones(sides[0], x.dtype)
    product = Multiplication(ones.array, x.reshape(sides), out.reshape(1, sides[1]))
    return _ProductRunner(ones, product, call, rank)


@lru_cache(maxsize=4096)
def _found(node: Node, accuracy: str, limit: int) -> tuple[int, int]:
    """Return the library's workspace for a sum under these settings, and its algorithm count."""
    sides = _sides(node)
    if sides is None or node.dtype not in (float16, bfloat16, float32):
        return 0, 0
    terms, results = sides
    is_exact = terms <= MOST_TERMS or accuracy == "fast"
    if not is_exact or terms < 2 or terms * results < FEWEST_ELEMENTS:
        return 0, 0
    row, x, out = (
        described(Spec(shape, node.dtype)) for shape in ((1, terms), sides, (1, results))
    )
    return cublas.workspace(Multiplication(row, x, out))


def _supports(rank: int, node: Node) -> bool:
    if libraries.cublas_lt() is None or not libraries.may_measure():
        return False
    return _found(detached(node), settings.accuracy, workspace_limit())[1] > rank


def _workspace(node: Node) -> int:
    # Arrays that lie otherwise are reduced by a loop.
    own = _found(detached(node), settings.accuracy, workspace_limit())[0]
    return max(own, workspace(node))


for _rank in range(RANKS):
    # The library's first algorithm is seldom the fastest for a single row.
    _ones_name = "product with ones" if _rank == 0 else f"product with ones {_rank + 1}"
    TABLE.add(
        Kernel(
            "sum",
            "cuda",
            _ones_name,
            partial(_bind, _rank),
            partial(_supports, _rank),
            _workspace,
            priority=-1 - _rank,
            varies=True,
        )
    )
