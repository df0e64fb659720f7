"""Timing the kernels of one node against each other, on arrays of its real shapes.

Each kernel is checked once: two that agree vouch for each other, and where they do not, or only one
is there, the oracle decides. One that raises or computes something else is out of the race.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from time import perf_counter

import numpy as np

from caldera.core.graph.memory_format import laid_out
from caldera.core.graph.node import Node, Spec
from caldera.core.memory.host import note_garbage
from caldera.core.tensor.dtype import DType, bfloat16, bool_, float16, float32, float64, is_float
from caldera.core.tensor.shape import Shape
from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.kernels.reference import evaluate
from caldera.kernels.table import Call, Kernel, Runner
from caldera.kernels.thread_counts import SHORT_S, is_shared, on_fewer_threads, seconds_in_plan
from caldera.kernels.tuning import Clock, TuningResult, race

ALIGNMENT = 64
TOLERANCE: dict[DType, float] = {float64: 1e-10, float32: 1e-4, float16: 1e-2, bfloat16: 4e-2}
"""Largest error, relative to the largest element of the right result."""
ROUNDED = 5e-3
"""The same where float32 operands may be rounded to tf32."""
PATTERN = (1 << 18) + 7
"""Different numbers in an input; a larger one repeats them."""
PIECE = 1 << 16
"""Elements of two results that are compared at once."""
COLD_S = 2e-3
"""Seconds of a call from which on it does not matter that workers have to be called first."""
YARDSTICK = 192
"""Rows and columns of what tells how fast the machine is at the moment."""


def measure(
    node: Node,
    kernels: Sequence[Kernel],
    seconds: float,
    values: Sequence[np.ndarray] | None = None,
    *,
    thorough: bool = False,
) -> TuningResult:
    """Time the kernels on this node for about `seconds`, at least twice each.

    `values` are its inputs, if made-up ones say nothing about these kernels. With `thorough` the
    oracle checks them all, and none is left out of the race for being just as fast as another.
    """
    deadline = perf_counter() + seconds
    specs = [given.outputs[0] for given in node.inputs]
    if values is None:
        inputs = tuple(_made_up(index, spec) for index, spec in enumerate(specs))
    else:
        inputs = tuple(_placed(spec, value) for spec, value in zip(specs, values, strict=True))
    outputs = tuple(_aligned(spec) for spec in node.outputs)
    nbytes = max(kernel.workspace(node) for kernel in kernels)
    workspace = _aligned(Spec((nbytes,), np.dtype(np.uint8))) if nbytes else None
    if workspace is not None:
        # Within a plan it has been used before: the first kernel must not pay for getting it.
        workspace.fill(0)
    call = Call(node, outputs, inputs, workspace)
    outcome = TuningResult()
    with single_threaded_blas, np.errstate(all="ignore"):
        before = _pace()
        judge = _Judge(call, alone=thorough or len(kernels) == 1)
        runners = _right_runners(kernels, call, judge, outcome)
        race(_clocks(runners), outcome, deadline, thorough=thorough)
        best = min(
            kernels,
            key=lambda each: seconds_in_plan(each, outcome.times.get(each.name, math.inf)),
        )
        if _is_short(best.name, runners, outcome) and is_shared(runners[best.name]):
            fewer = [each for each in on_fewer_threads(best) if each.workspace(node) <= nbytes]
            rivals = {best.name: runners[best.name]}
            rivals.update(_right_runners(fewer, call, judge, outcome))
            race(_clocks(rivals), outcome, deadline, thorough=thorough)
        # The best times of kernels count, and so does that of the yardstick.
        outcome.pace = min(before, _pace())
    note_garbage()
    return outcome


def _pace() -> float:
    """The seconds of the yardstick: a product that any machine computes from its cache."""
    a, b, c = _yardstick()
    return min(_seconds(partial(np.matmul, a, b, out=c), 1) for _ in range(3))


@lru_cache(maxsize=1)
def _yardstick() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    a, b = (some_numbers((YARDSTICK, YARDSTICK), float32, np.random.default_rng(0)) for _ in "ab")
    return a, b, np.empty_like(a)


def _right_runners(
    kernels: Sequence[Kernel], call: Call, judge: _Judge, outcome: TuningResult
) -> dict[str, Runner]:
    """Those kernels that are right, ready to run; `outcome` notes the seconds of their first run,
    and what is wrong with the others."""
    runners = {}
    for kernel in kernels:
        try:
            for output in call.outputs:
                # What the kernel before it left here must not pass for its own result.
                output.fill(np.nan if is_float(output.dtype) else 1)
            runner = kernel.bind(call)
            seconds = _seconds(runner, 1)
            judge.hear(kernel)
        except Exception as problem:
            # Whatever a candidate raises, the others can still serve.
            outcome.failures[kernel.name] = f"{type(problem).__name__}: {problem}"
        else:
            runners[kernel.name] = runner
            outcome.times[kernel.name] = seconds
    for name, reason in judge.wrong().items():
        outcome.failures[name] = reason
        del runners[name], outcome.times[name]
    return runners


class _Judge:
    """Knows the right results of a call: those that two kernels agree on, or the oracle's.

    Kernels of one origin share its mistakes, and do not confirm each other. With `alone` no kernel
    confirms another.
    """

    def __init__(self, call: Call, *, alone: bool) -> None:
        self._call = call
        self._right: Sequence[np.ndarray] | None = None
        self._witness: tuple[Kernel, list[np.ndarray]] | None = None
        # Integers may be right by chance.
        self._alone = alone or not all(is_float(output.dtype) for output in call.outputs)

    def hear(self, kernel: Kernel) -> None:
        """Take what a kernel has just written; raise if it is known to be wrong."""
        call = self._call
        if not is_checkable(call.node):
            return
        if self._right is None and not self._alone:
            if self._witness is None:
                self._witness = kernel, [output.copy() for output in call.outputs]
                return
            witness, results = self._witness
            if witness.origin != kernel.origin and self._agree(results, call.outputs):
                self._right = results
                return
        self._check(call.outputs)

    def wrong(self) -> dict[str, str]:
        """What is wrong with the first kernel, if no other has confirmed it."""
        if self._witness is None or self._right is self._witness[1]:
            return {}
        (kernel, results), self._witness = self._witness, None
        try:
            self._check(results)
        except _WrongResultError as problem:
            return {kernel.name: f"{type(problem).__name__}: {problem}"}
        return {}

    def _agree(self, results: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
        # What nobody has written to is the same for all.
        if not all(map(_is_finite, results)):
            return False
        try:
            self._compare(others, results)
        except _WrongResultError:
            return False
        return True

    def _check(self, results: Sequence[np.ndarray]) -> None:
        if self._right is None:
            self._right = evaluate(self._call.node, self._call.inputs)
        self._compare(results, self._right)

    def _compare(self, results: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
        for result, right in zip(results, wanted, strict=True):
            compare(result, right, tolerance_of(self._call.node, result.dtype))


class _WrongResultError(Exception):
    """A kernel does not compute what the oracle does."""


def is_checkable(node: Node) -> bool:
    """Whether made-up numbers show if a result is right.

    Through the steps of a loop they grow without bound, and differences in the last bit with them.
    """
    return node.op.name != "scan"


def tolerance_of(node: Node, dtype: DType) -> float:
    """How far a result of this dtype may be off, beside the largest element of the right one."""
    is_rounded = node.attrs.get("compute") == "tf32" and dtype == float32
    return ROUNDED if is_rounded else TOLERANCE.get(dtype, 0.0)


def compare(output: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    """Raise if a result is not the right one."""
    if not is_float(output.dtype):
        if not np.array_equal(output, wanted):
            raise _WrongResultError("the result differs from that of the oracle")
        return
    if _is_close_at_once(output, wanted, tolerance):
        return
    wide = np.asarray(wanted, float64)
    scale = float(np.abs(wide[np.isfinite(wide)]).max(initial=0.0))
    allowed = tolerance * max(scale, 1e-30)
    if not np.allclose(output.astype(float64), wide, rtol=0.0, atol=allowed, equal_nan=True):
        worst = float(np.nanmax(np.abs(output.astype(float64) - wide), initial=0.0))
        raise _WrongResultError(
            f"the result differs from that of the oracle by {worst:.1e}, beside {scale:.1e}"
        )


def _is_close_at_once(output: np.ndarray, wanted: np.ndarray, tolerance: float) -> bool:
    """Whether all numbers are finite and near enough, found without making them wider.

    Results of a first step are large, and most are right. The difference of two float32 numbers
    that are nearly alike is as exact as it has to be; where it is not small, or not a number, it is
    looked at more closely.
    """
    if output.dtype != wanted.dtype or output.dtype not in (float32, float64) or not wanted.size:
        return False
    scale = max(abs(float(wanted.max())), abs(float(wanted.min())))
    if not math.isfinite(scale):
        return False
    # Half of what is allowed, so that rounding here decides nothing; a nan is not below it.
    allowed = 0.5 * tolerance * max(scale, 1e-30)
    return all(
        float(np.abs(output[part] - wanted[part]).max()) <= allowed for part in _pieces(wanted)
    )


def _is_finite(array: np.ndarray) -> bool:
    """Whether an array of floats has numbers alone."""
    return all(
        bool(np.isfinite(array[part].astype(float32, copy=False)).all()) for part in _pieces(array)
    )


def _pieces(array: np.ndarray) -> Iterator[tuple[slice, ...]]:
    """Where parts of an array are, so small that what is computed from one stays in the cache: a
    weight may be as large as all that the step needs."""
    if array.ndim == 0:
        yield ()
        return
    axis = max(range(array.ndim), key=array.shape.__getitem__)
    length = array.shape[axis]
    step = max(1, PIECE * length // max(array.size, 1))
    for start in range(0, length, step):
        yield (*(slice(None) for _ in range(axis)), slice(start, start + step))


def _is_short(name: str, runners: dict[str, Runner], outcome: TuningResult) -> bool:
    """Whether the best kernel may be faster on fewer threads; where a race was over early, it is
    timed more often to see."""
    seconds = outcome.times.get(name, math.inf)
    if SHORT_S < seconds <= 2 * SHORT_S:
        seconds = outcome.times[name] = min(seconds, *(_seconds(runners[name], 1) for _ in "abc"))
    return seconds <= SHORT_S


def _clocks(runners: dict[str, Runner]) -> dict[str, Clock]:
    """Those that several threads compute run once before they are timed, where workers may have
    gone back to the pool meanwhile: within a plan they are there."""
    shared = {name for name, each in runners.items() if is_shared(each)}
    stay = len(shared) == len(runners)
    for name in sorted(shared)[: int(stay)]:
        _warm_seconds(runners[name], 1)
    return {
        name: partial(_warm_seconds if name in shared and not stay else _seconds, each)
        for name, each in runners.items()
    }


def _warm_seconds(runner: Runner, count: int) -> float:
    first = _seconds(runner, 1)
    return first if first > COLD_S else _seconds(runner, count)


def _seconds(runner: Runner, count: int) -> float:
    start = perf_counter()
    for _ in range(count):
        runner()
    return (perf_counter() - start) / count


def _memory(spec: Spec) -> np.ndarray:
    """Elements in a row, where plans may have them: kernels may be slower in other places."""
    block = np.empty(spec.nbytes + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + spec.nbytes].view(spec.dtype)


def _aligned(spec: Spec) -> np.ndarray:
    """An array as plans lay it out."""
    return laid_out(_memory(spec), spec.shape, spec.order)


def _placed(spec: Spec, value: np.ndarray) -> np.ndarray:
    array = _aligned(spec)
    array[...] = value
    return array


def _made_up(index: int, spec: Spec) -> np.ndarray:
    """Numbers for the input of this index: to make each anew takes longer than to use it."""
    memory, pattern = _memory(spec), _pattern(index, spec.dtype)
    for start in range(0, memory.size, PATTERN):
        part = memory[start : start + PATTERN]
        part[...] = pattern[: part.size]
    return laid_out(memory, spec.shape, spec.order)


@lru_cache(maxsize=8)
def _pattern(index: int, dtype: DType) -> np.ndarray:
    return some_numbers((PATTERN,), dtype, np.random.default_rng(index))


def some_numbers(shape: Shape, dtype: DType, generator: np.random.Generator) -> np.ndarray:
    """Numbers of both signs whose sums do not cancel; integers are 0, which is a valid index."""
    if is_float(dtype):
        return generator.uniform(-0.5, 1.5, shape).astype(dtype)
    if dtype == bool_:
        return generator.integers(0, 2, shape).astype(bool_)
    return np.zeros(shape, dtype)
