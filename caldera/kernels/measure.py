"""Timing the kernels of one node against each other, on arrays of its real shapes.

Each kernel is checked once against the oracle; one that raises or computes something else is out of
the race. The others run in turns, so that whatever disturbs the machine disturbs all of them, and
the best round of each counts: noise only ever adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

import numpy as np

from caldera.graph.memory_format import laid_out
from caldera.graph.node import Node, Spec
from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.kernels.native.codegen.program import NativeRunner
from caldera.kernels.reference import evaluate
from caldera.kernels.table import Call, Kernel, Runner
from caldera.kernels.thread_counts import SHORT_S, on_fewer_threads
from caldera.tensor.dtype import DType, bfloat16, bool_, float16, float32, float64, is_float
from caldera.tensor.shape import Shape

ROUNDS = 5
SAMPLE_S = 2e-4
"""What one timing should last at least, so that the clock is fine enough."""
HOPELESS = 3.0
"""A kernel that starts this many times slower than the best is not timed any further."""
ALIGNMENT = 64
TOLERANCE: dict[DType, float] = {float64: 1e-10, float32: 1e-4, float16: 1e-2, bfloat16: 4e-2}
"""Largest error, relative to the largest element of the right result."""
ROUNDED = 5e-3
"""The same where float32 operands may be rounded to tf32."""
Clock = Callable[[int], float]
"""Runs a kernel so many times, and gives the seconds that one run took."""


@dataclass
class Outcome:
    """Seconds a call of each kernel that is right, and what is wrong with the others."""

    times: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def measure(
    node: Node,
    kernels: Sequence[Kernel],
    seconds: float,
    values: Sequence[np.ndarray] | None = None,
) -> Outcome:
    """Time the kernels on this node for about `seconds`, at least twice each.

    `values` are its inputs, if made-up ones say nothing about these kernels.
    """
    deadline = perf_counter() + seconds
    generator = np.random.default_rng(0)
    specs = [given.outputs[0] for given in node.inputs]
    if values is None:
        values = [some_numbers(spec.shape, spec.dtype, generator) for spec in specs]
    inputs = tuple(_placed(spec, value) for spec, value in zip(specs, values, strict=True))
    outputs = tuple(_aligned(spec) for spec in node.outputs)
    nbytes = max(kernel.workspace(node) for kernel in kernels)
    workspace = _aligned(Spec((nbytes,), np.dtype(np.uint8))) if nbytes else None
    call = Call(node, outputs, inputs, workspace)
    outcome = Outcome()
    with single_threaded_blas, np.errstate(all="ignore"):
        right = evaluate(node, inputs) if is_checkable(node) else None
        runners = _right_runners(kernels, call, right, outcome)
        race(_clocks(runners), outcome, deadline)
        best = min(kernels, key=lambda each: outcome.times.get(each.name, math.inf))
        if outcome.times.get(best.name, math.inf) <= SHORT_S and _is_shared(runners[best.name]):
            fewer = [each for each in on_fewer_threads(best) if each.workspace(node) <= nbytes]
            runners = _right_runners(fewer, call, right, outcome)
            race(_clocks(runners), outcome, deadline)
    return outcome


def _right_runners(
    kernels: Sequence[Kernel], call: Call, right: Sequence[np.ndarray] | None, outcome: Outcome
) -> dict[str, Runner]:
    """Those kernels that compute what the oracle does, ready to run; `outcome` notes the others."""
    runners = {}
    for kernel in kernels:
        try:
            runners[kernel.name] = _checked(kernel, call, right)
        except Exception as problem:
            # Whatever a candidate raises, the others can still serve.
            outcome.failures[kernel.name] = f"{type(problem).__name__}: {problem}"
    return runners


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


def _checked(kernel: Kernel, call: Call, right: Sequence[np.ndarray] | None) -> Runner:
    for output in call.outputs:
        # What the kernel before it left here must not pass for its own result.
        output.fill(np.nan if is_float(output.dtype) else 1)
    runner = kernel.bind(call)
    runner()
    for output, wanted in zip(call.outputs if right else (), right or (), strict=True):
        compare(output, wanted, tolerance_of(call.node, output.dtype))
    return runner


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
    # Of two scalars NumPy makes a number, not an array.
    apart = np.asarray(np.subtract(output, wanted))
    worst = float(np.abs(apart, out=apart).max())
    # Half of what is allowed, so that rounding here decides nothing; a nan is not below it.
    return worst <= 0.5 * tolerance * max(scale, 1e-30)


def race(clocks: dict[str, Clock], outcome: Outcome, deadline: float) -> None:
    """Let the kernels run in turns, and keep the best time of each."""
    times = outcome.times
    for _ in range(2):
        for name, seconds in clocks.items():
            times[name] = min(times.get(name, math.inf), seconds(1))
    best = min(times.values(), default=0.0)
    repeats = {
        name: max(1, int(SAMPLE_S / max(times[name], 1e-7)))
        for name in clocks
        if times[name] <= HOPELESS * best
    }
    for _ in range(ROUNDS):
        for name, count in repeats.items():
            if perf_counter() > deadline:
                return
            times[name] = min(times[name], clocks[name](count))


def _is_shared(runner: Runner) -> bool:
    """Whether several threads compute it."""
    return isinstance(runner, NativeRunner) and any(call.parts > 1 for call in runner.calls)


def _clocks(runners: dict[str, Runner]) -> dict[str, Clock]:
    return {name: partial(_seconds, each) for name, each in runners.items()}


def _seconds(runner: Runner, count: int) -> float:
    start = perf_counter()
    for _ in range(count):
        runner()
    return (perf_counter() - start) / count


def _aligned(spec: Spec) -> np.ndarray:
    """Memory as plans lay it out: kernels may be slower on any other."""
    block = np.empty(spec.nbytes + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    memory = block[start : start + spec.nbytes].view(spec.dtype)
    return laid_out(memory, spec.shape, spec.order)


def _placed(spec: Spec, value: np.ndarray) -> np.ndarray:
    array = _aligned(spec)
    array[...] = value
    return array


def some_numbers(shape: Shape, dtype: DType, generator: np.random.Generator) -> np.ndarray:
    """Numbers of both signs whose sums do not cancel; integers are 0, which is a valid index."""
    if is_float(dtype):
        return generator.uniform(-0.5, 1.5, shape).astype(dtype)
    if dtype == bool_:
        return generator.integers(0, 2, shape).astype(bool_)
    return np.zeros(shape, dtype)
