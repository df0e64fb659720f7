"""Timing of kernels on a GPU, by its clock and without Python in between.

Calls are captured once and replayed. Every kernel is checked once. Where the oracle would take too
long, our own kernel is the reference; tests check it against the oracle. Without a GPU, kernels run
where the tests run them, and the host's clock decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from time import perf_counter
from typing import Any

import numpy as np

from caldera.core.graph import Node, Spec, laid_out, stored_shape
from caldera.core.memory import Block, Device, device
from caldera.core.memory.capture import capture
from caldera.core.memory.cuda import launching_stream
from caldera.core.memory.gpus import card_count, cupy
from caldera.core.tensor.dtype import DType
from caldera.kernels.cuda.runtime import device as libraries
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.reference import evaluate
from caldera.kernels.table import PRECISION_CHECKS, Call, Kernel, Runner
from caldera.kernels.tuning import measure as on_host
from caldera.kernels.tuning.choose import SLOW_FLOPS, TIMERS
from caldera.kernels.tuning.correctness import compare, is_checkable, tolerance_of
from caldera.kernels.tuning.database import FACTS
from caldera.kernels.tuning.measure import (
    HOPELESS,
    SAMPLE_S,
    Clock,
    TuningResult,
    race,
    some_numbers,
)

OWN = frozenset({"tiles", "direct"})
"""Kernels whose results serve as references for other kernels."""
ORACLE_FLOPS = 5e8
ORACLE_BYTES = 64 << 20
"""Work from which on the oracle takes too long."""
PATTERN = (1 << 20) + 7
"""Different numbers in an input; a larger one repeats them."""
WINDOW = 1 << 17
"""Bytes of a large result that are compared, at its start, middle and end.

Comparing more takes longer than everything else.
"""
CAPTURED = 8
REPLAY_S = 1e-3
"""Maximum number of calls replayed together, and their target duration.

With this duration the launch time is negligible.
"""


def measure(
    node: Node,
    kernels: Sequence[Kernel],
    seconds: float,
    values: Sequence[np.ndarray] | None = None,
    *,
    thorough: bool = False,
) -> TuningResult:
    """Time the kernels on this node for about `seconds`, at least twice each.

    `values` are its inputs, if generated values are not representative for these kernels. With
    `thorough`, kernels that are as fast as another one are measured as well.
    """
    if not card_count():
        return on_host.measure(node, kernels, seconds, values, thorough=thorough)
    place = device(f"cuda:{libraries.current_card()}")
    course = _Course(place, node, kernels, values)
    outcome = course.run(perf_counter() + seconds, thorough=thorough)
    # What kernels were tried on may be larger than all that training needs.
    place.trim()
    return outcome


@lru_cache(maxsize=16)
def _pattern(index: int, dtype: DType) -> np.ndarray:
    """Return numbers for the input of this index."""
    return some_numbers((PATTERN,), dtype, np.random.default_rng(index))


# --- memory


@dataclass(frozen=True)
class _Value:
    """Value on the GPU: its memory, and the array that kernels receive."""

    spec: Spec
    block: Block
    array: Any


def _value(place: Device, spec: Spec) -> _Value:
    block = place.allocate(max(spec.nbytes, 1), owner="measuring")
    memory = place.array(block, 0, stored_shape(spec.shape, spec.order), spec.dtype)
    return _Value(spec, block, laid_out(memory, spec.shape, spec.order))


def _fill(place: Device, value: _Value, pattern: np.ndarray) -> None:
    """Repeat a pattern until the value is full: each copy on the GPU doubles the filled part."""
    total, filled = value.spec.nbytes, min(value.spec.nbytes, pattern.nbytes)
    if not total:
        return
    place.copy_in(value.block, 0, pattern.view(np.uint8)[:filled], place.stream)
    while filled < total:
        more = min(filled, total - filled)
        place.copy_within(value.block, filled, value.block, 0, more, place.stream)
        filled += more


def _windows(nbytes: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a result to compare: the whole result, unless it is large."""
    if nbytes <= 3 * WINDOW:
        yield 0, nbytes
        return
    middle = nbytes // 2 // WINDOW * WINDOW
    yield from ((0, WINDOW), (middle, WINDOW), ((nbytes - WINDOW) // 64 * 64, WINDOW))


def _fetched(place: Device, value: _Value) -> list[np.ndarray]:
    """Return the elements in all windows of a value."""
    found = []
    for offset, nbytes in _windows(value.spec.nbytes):
        here = np.empty(nbytes, np.uint8)
        place.copy_out(here, value.block, offset, nbytes, place.stream)
        found.append(here)
    place.stream.synchronize()
    return [here.view(value.spec.dtype) for here in found]


def _windows_of(array: np.ndarray, spec: Spec) -> list[np.ndarray]:
    """Return the elements in all windows of a result on the host."""
    flat = _as_stored(array, spec).reshape(-1).view(np.uint8)
    return [
        flat[offset : offset + nbytes].view(spec.dtype) for offset, nbytes in _windows(spec.nbytes)
    ]


def _as_stored(array: np.ndarray, spec: Spec) -> np.ndarray:
    """Return the elements in memory order."""
    return np.ascontiguousarray(array if spec.order is None else array.transpose(spec.order))


# --- the course


class _Course:
    """Common state for measuring all kernels of a node."""

    def __init__(
        self,
        place: Device,
        node: Node,
        kernels: Sequence[Kernel],
        values: Sequence[np.ndarray] | None = None,
    ) -> None:
        self._place = place
        self._node = node
        # Our own kernel runs first: it may be the reference for the remaining kernels.
        self._kernels = sorted(kernels, key=lambda kernel: kernel.name not in OWN)
        specs = [given.outputs[0] for given in node.inputs]
        self._patterns = [
            _pattern(index, spec.dtype)[: spec.size]
            if values is None
            else _as_stored(values[index], spec).reshape(-1)
            for index, spec in enumerate(specs)
        ]
        self._inputs = [_value(place, spec) for spec in specs]
        for value, pattern in zip(self._inputs, self._patterns, strict=True):
            _fill(place, value, pattern)
        self._outputs = [_value(place, spec) for spec in node.outputs]
        nbytes = max(kernel.workspace(node) for kernel in kernels)
        spare = _value(place, Spec((nbytes,), np.dtype(np.uint8))) if nbytes else None
        self._call = Call(
            node,
            tuple(each.array for each in self._outputs),
            tuple(each.array for each in self._inputs),
            None if spare is None else spare.array,
        )
        self._right: list[list[np.ndarray]] | None = None
        specs += node.outputs
        if (
            is_checkable(node)
            and node.op.count_flops(node) <= ORACLE_FLOPS
            and sum(spec.nbytes for spec in specs) <= ORACLE_BYTES
        ):
            self._right = self._by_oracle()

    def _by_oracle(self) -> list[list[np.ndarray]]:
        inputs = [
            laid_out(np.resize(pattern, value.spec.size), value.spec.shape, value.spec.order)
            for value, pattern in zip(self._inputs, self._patterns, strict=True)
        ]
        with np.errstate(all="ignore"):
            results = evaluate(self._node, inputs)
        return [
            _windows_of(result, spec)
            for result, spec in zip(results, self._node.outputs, strict=True)
        ]

    def run(self, deadline: float, *, thorough: bool) -> TuningResult:
        """Check the kernels, and let them race."""
        outcome = TuningResult()
        clocks: dict[str, Clock] = {}
        for kernel in self._kernels:
            try:
                runner = self._checked(kernel)
                once = _seconds(self._place, (partial(self._place.stream.launch, runner), 1), 1)
                replayed = self._replayed(kernel, runner, once)
                clock = clocks[kernel.name] = partial(_seconds, self._place, replayed)
                # A library may keep the host busy for longer than the GPU, but only for a short
                # time.
                outcome.times[kernel.name] = once if once > REPLAY_S else min(once, clock(1))
            except MemoryError:
                raise
            except Exception as problem:
                # After any error of a candidate, the remaining candidates can still serve.
                outcome.failures[kernel.name] = f"{type(problem).__name__}: {problem}"
        # For a slow kernel, the first call decides if a second one is worthwhile.
        limit = max(HOPELESS * min(outcome.times.values(), default=0.0), SAMPLE_S)
        race(
            {name: clocks[name] for name in clocks if outcome.times[name] <= limit},
            outcome,
            deadline,
            thorough=thorough,
        )
        # Memory is returned to the pool only after its last use.
        self._place.stream.synchronize()
        return outcome

    def _checked(self, kernel: Kernel) -> Runner:
        """Return the bound kernel if its results are correct."""
        for value in self._outputs:
            # The previous kernel's results must not be mistaken for results of this kernel.
            self._spoil(value)
        runner = kernel.bind(self._call)
        self._place.stream.launch(runner)
        found = [_fetched(self._place, value) for value in self._outputs]
        if self._right is None:
            if kernel.name in OWN:
                self._right = found
            return runner
        for windows, wanted, spec in zip(found, self._right, self._node.outputs, strict=True):
            allowed = tolerance_of(self._node, spec.dtype)
            for one, other in zip(windows, wanted, strict=True):
                compare(one, other, allowed)
        return runner

    def _spoil(self, value: _Value) -> None:
        nbytes, address = value.spec.nbytes, value.block.address
        # All bits set are a nan in every float.
        self._place.stream.launch(
            lambda: cupy().cuda.runtime.memsetAsync(address, 0xFF, nbytes, launching_stream())
        )

    def _replayed(self, kernel: Kernel, runner: Runner, once: float) -> tuple[Runner, int]:
        """Return a runner that replays several calls of the kernel, and the number of calls.

        `once` is the time of a call.
        """
        stream = self._place.stream
        if not kernel.capturable:
            return partial(stream.launch, runner), 1
        calls = max(1, min(CAPTURED, int(REPLAY_S / max(once, 1e-7))))

        def several() -> None:
            for _ in range(calls):
                stream.launch(runner)

        return capture(stream, several).replay, calls


def _seconds(place: Device, replayed: tuple[Runner, int], count: int) -> float:
    """Return the seconds per call, measured by the GPU's clock."""
    replay, calls = replayed
    before, after = cupy().cuda.Event(), cupy().cuda.Event()
    rounds = max(1, count // calls)
    # A launch makes its stream the current one, on which events are recorded.
    place.stream.launch(before.record)
    for _ in range(rounds):
        replay()
    place.stream.launch(after.record)
    place.stream.synchronize()
    milliseconds: float = cupy().cuda.get_elapsed_time(before, after)
    return milliseconds * 1e-3 / (rounds * calls)


TIMERS["cuda"] = measure
PRECISION_CHECKS["cuda"] = lambda precision: driver().card.refuse_precision(precision)
# The simulated GPU of the tests is slow.
SLOW_FLOPS["cuda"] = lambda: 1e13 if card_count() else 1e7
FACTS["cuda"] = libraries.facts
