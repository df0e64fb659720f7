"""Timing the kernels of a node against each other, on arrays of its real shapes.

Each kernel is checked once; a kernel that raises an error or computes a wrong result is excluded.
Candidates run interleaved, so a disturbance of the machine affects all kernels, and the best time
of each counts: noise only ever adds. The distance between the best and the second-best time shows
the uncertainty of the best. A candidate is dropped as soon as its expected gain is small, either
because it is far behind or because it is as fast as the best.

A process may spend `settings.tune_budget_s` without a pause. The spent budget is restored at a
tenth of a second per second of other work. Otherwise a large network would use up the budget of
later networks in the same process, and their kernels would be guessed, however long they are
trained. So measuring takes at most a tenth of a long run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from time import perf_counter

import numpy as np

from caldera.base.config import settings
from caldera.base.noise import NoiseWatch
from caldera.core.graph import Node, Spec, laid_out
from caldera.core.memory.host import note_garbage
from caldera.core.tensor import DType, Shape, bool_, float32, is_float
from caldera.kernels.common.binding import ALIGNMENT
from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.kernels.native.codegen.program import compiled_together
from caldera.kernels.table import Call, Kernel, Runner
from caldera.kernels.tuning.correctness import Judge
from caldera.kernels.tuning.threads import SHORT_S, is_shared, on_fewer_threads, seconds_in_plan

PATTERN = (1 << 18) + 7
"""Different numbers in an input; a larger one repeats them."""
COLD_S = 2e-3
"""Seconds of a call from which on it does not matter that workers have to be called first."""
YARDSTICK = 192
"""Rows and columns of the reference product, which measures the current speed of the machine."""
PACE_CHANGES = 0.3
"""Share by which the yardstick may take longer on a quiet machine, as its frequency changes."""
ROUNDS = 7
SAMPLE_S = 2e-4
"""Minimum duration of a timing, for the resolution of the clock."""
HOPELESS = 3.0
"""A kernel that starts this many times slower than the best is not timed any further."""
LOSS = 0.015
"""Expected loss of a choice, as a share of its time, below which measuring stops."""
JITTER = 0.02
"""Standard deviation, in logarithms of seconds, that a best time has at least."""
Clock = Callable[[int], float]
"""Function that runs a kernel `count` times and returns the seconds of one run."""


def measure(
    node: Node,
    kernels: Sequence[Kernel],
    seconds: float,
    values: Sequence[np.ndarray] | None = None,
    *,
    thorough: bool = False,
) -> TuningResult:
    """Time the kernels on this node for about `seconds`, at least twice each.

    `values` are its inputs, if artificial ones do not represent the time of these kernels. With
    `thorough` the oracle checks all kernels, and kernels as fast as the best stay in the
    comparison.
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
        watch, before = NoiseWatch(), reference_seconds()
        judge = Judge(call, alone=thorough or len(kernels) == 1)
        runners = _right_runners(kernels, call, judge, outcome)
        race(_clocks(runners), outcome, deadline, thorough=thorough)
        best = min(
            kernels,
            key=lambda each: seconds_in_plan(each, outcome.times.get(each.name, math.inf)),
        )
        if _is_short(best.name, runners, outcome) and is_shared(runners[best.name]):
            fewer = [each for each in on_fewer_threads(best) if each.workspace(node) <= nbytes]
            right = _right_runners(fewer, call, judge, outcome)
            contenders = {best.name: runners[best.name], **right}
            race(_clocks(contenders), outcome, deadline, thorough=thorough)
        # The best times of kernels count, and so does the best reference time.
        after = reference_seconds()
        outcome.pace = min(before, after)
        outcome.noise = max(watch.cores(), slowdown(max(before, after), outcome.pace))
    note_garbage()
    return outcome


def reference_seconds() -> float:
    """Return the seconds of the yardstick: a product that any machine computes from its cache."""
    a, b, c = _yardstick()
    return min(_seconds(partial(np.matmul, a, b, out=c), 1) for _ in range(3))


def slowdown(seconds: float, fastest: float) -> float:
    """Return the excess of the yardstick's time over its fastest time, as a share of the latter.

    Usual changes of a processor's frequency are subtracted.

    >>> slowdown(1.1, 1.0)
    0.0
    """
    return max(0.0, seconds / fastest - 1.0 - PACE_CHANGES)


@lru_cache(maxsize=1)
def _yardstick() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    a, b = (some_numbers((YARDSTICK, YARDSTICK), float32, np.random.default_rng(0)) for _ in "ab")
    return a, b, np.empty_like(a)


def _right_runners(
    kernels: Sequence[Kernel], call: Call, judge: Judge, outcome: TuningResult
) -> dict[str, Runner]:
    """Return the correct kernels, ready to run.

    `outcome` receives the seconds of their first run, and the errors of the excluded kernels.
    """
    runners: dict[str, Runner] = {}
    # A kernel that cannot be compiled raises its error again when it is run.
    with suppress(Exception), compiled_together():
        for kernel in kernels:
            with outcome.excluding(kernel):
                runners[kernel.name] = kernel.bind(call)
    for kernel in [each for each in kernels if each.name in runners]:
        runner = runners.pop(kernel.name)
        with outcome.excluding(kernel):
            for output in call.outputs:
                # Results of the previous kernel must not pass for those of this one.
                output.fill(np.nan if is_float(output.dtype) else 1)
            seconds = _seconds(runner, 1)
            judge.hear(kernel)
            runners[kernel.name] = runner
            outcome.times[kernel.name] = seconds
    for name, reason in judge.wrong().items():
        outcome.failures[name] = reason
        del runners[name], outcome.times[name]
    return runners


def _is_short(name: str, runners: dict[str, Runner], outcome: TuningResult) -> bool:
    """Return True if the best kernel may be faster on fewer threads.

    If the comparison was over early, the kernel is timed more often first.
    """
    seconds = outcome.times.get(name, math.inf)
    if SHORT_S < seconds <= 2 * SHORT_S:
        seconds = outcome.times[name] = min(seconds, *(_seconds(runners[name], 1) for _ in "abc"))
    return seconds <= SHORT_S


def _clocks(runners: dict[str, Runner]) -> dict[str, Clock]:
    """Return the timing functions of kernels.

    Multithreaded kernels run once before they are timed if the workers may have returned to the
    pool: within a plan they are active.
    """
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
    """Return an uninitialised array with the layout and alignment that plans use."""
    return laid_out(_memory(spec), spec.shape, spec.order)


def _placed(spec: Spec, value: np.ndarray) -> np.ndarray:
    array = _aligned(spec)
    array[...] = value
    return array


def _made_up(index: int, spec: Spec) -> np.ndarray:
    """Return numbers for the input of this index, repeated as generating them is slow."""
    memory, pattern = _memory(spec), _pattern(index, spec.dtype)
    for start in range(0, memory.size, PATTERN):
        part = memory[start : start + PATTERN]
        part[...] = pattern[: part.size]
    return laid_out(memory, spec.shape, spec.order)


@lru_cache(maxsize=8)
def _pattern(index: int, dtype: DType) -> np.ndarray:
    return some_numbers((PATTERN,), dtype, np.random.default_rng(index))


def some_numbers(shape: Shape, dtype: DType, generator: np.random.Generator) -> np.ndarray:
    """Return numbers of both signs whose sums do not cancel.

    Integers are 0, which is a valid index.
    """
    if is_float(dtype):
        return generator.uniform(-0.5, 1.5, shape).astype(dtype)
    if dtype == bool_:
        return generator.integers(0, 2, shape).astype(bool_)
    return np.zeros(shape, dtype)


# --- races


@dataclass
class TuningResult:
    """Seconds per call of each correct kernel, and the errors of the excluded ones.

    `pace` is the seconds of a reference kernel measured with the kernels, if there is one. It makes
    times from a busy machine comparable with others. `noise` is the number of cores that other
    programs took during the measurement.
    """

    times: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    pace: float = 1.0
    noise: float = 0.0

    @contextmanager
    def excluding(self, kernel: Kernel) -> Iterator[None]:
        """Context that excludes a kernel on any error: the remaining ones can still serve."""
        try:
            yield
        except Exception as problem:
            self.failures[kernel.name] = f"{type(problem).__name__}: {problem}"


def race(
    clocks: dict[str, Clock], outcome: TuningResult, deadline: float, *, thorough: bool = False
) -> None:
    """Run kernels in turns, and record the best time of each.

    Times already in `outcome` count. With `thorough` all kernels run to the end except hopeless
    ones.
    """
    timings = {name: [outcome.times[name]] if name in outcome.times else [] for name in clocks}
    running = list(clocks)
    for turn in range(ROUNDS):
        for name in running:
            if turn > 1 and perf_counter() > deadline:
                return
            known = timings[name]
            count = max(1, int(SAMPLE_S / max(known[0], 1e-7))) if known else 1
            known.append(clocks[name](count))
            known.sort()
            outcome.times[name] = known[0]
        if turn and thorough:
            limit = HOPELESS * min((timings[name][0] for name in running), default=0.0)
            running = [name for name in running if timings[name][0] <= limit]
        elif not thorough:
            running = _undecided({name: timings[name] for name in running})
        if not running:
            return


def _undecided(timings: dict[str, list[float]]) -> list[str]:
    """Return the kernels of which it is worth knowing more: all that may well be the fastest."""
    if len(timings) < 2:
        return []
    best = min(timings, key=lambda name: timings[name][0])
    others = []
    for name, known in timings.items():
        behind = math.log(known[0] / timings[best][0])
        spread = math.hypot(_spread(known), _spread(timings[best]))
        if name != best and expected_loss(behind, spread) > LOSS:
            others.append(name)
    return [best, *others] if others else []


def _spread(known: list[float]) -> float:
    """Return the uncertainty of the best of these times, as a logarithm."""
    return max(JITTER, math.log(known[1] / known[0])) if len(known) > 1 else math.inf


def expected_loss(behind: float, spread: float) -> float:
    """Return the expected cost of skipping a kernel, as a share of the chosen kernel's time.

    `behind` is the logarithm of the ratio of their times, and `spread` its standard deviation.

    >>> round(expected_loss(0.0, 0.1), 3), round(expected_loss(0.3, 0.1), 3)
    (0.04, 0.0)
    """
    if math.isinf(spread):
        return math.inf
    away = behind / spread
    density = math.exp(-0.5 * away * away) / math.sqrt(2 * math.pi)
    return spread * density - behind * 0.5 * math.erfc(away / math.sqrt(2))


# --- the time that measuring may take


BACK_A_SECOND = 0.1
"""Seconds of budget regained per second."""


class TuningBudget:
    """Time spent on measuring recently in this process, and the remaining budget.

    >>> from caldera.kernels.tuning.measure import TuningBudget
    >>> budget = TuningBudget()
    >>> with budget.spending():
    ...     pass
    >>> budget.left > 4.9
    True
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Restore the whole budget.

        >>> TuningBudget().reset()
        """
        self._spent_s = 0.0
        self._as_of = perf_counter()

    @property
    def left(self) -> float:
        """Seconds that measuring may take now; below 0 after one that took longer than it should.

        >>> import caldera as cd
        >>> with cd.settings.override(tune_budget_s=0.0):
        ...     TuningBudget().left
        0.0
        """
        self._refill()
        return settings.tune_budget_s - self._spent_s

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Context manager whose duration is charged to the budget.

        >>> with TuningBudget().spending():
        ...     pass
        """
        self._refill()
        try:
            yield
        finally:
            now = perf_counter()
            self._spent_s, self._as_of = self._spent_s + now - self._as_of, now

    def _refill(self) -> None:
        now = perf_counter()
        back = BACK_A_SECOND * (now - self._as_of)
        self._spent_s, self._as_of = max(self._spent_s - back, 0.0), now
