"""Numbers of threads that take turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.code import skip_gram  # noqa: F401 - it registers the op and its kernels
from caldera.kernels.table import TABLE, Call
from caldera.kernels.tuning import threads as thread_counts
from caldera.kernels.tuning.threads import TURNS, Turns, taking_turns


def test_the_fastest_number_of_threads_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, ran = 0.0, []
    # The first call of all is slow whatever runs it.
    seconds = {4: [9.0, 2.0], 2: [1.0, 3.0], 1: [4.0, 4.0]}
    monkeypatch.setattr(thread_counts, "perf_counter", lambda: clock)

    def runner(threads: int) -> Callable[[], None]:
        def run() -> None:
            nonlocal clock
            ran.append(threads)
            clock += seconds[threads].pop(0) if seconds[threads] else 1.0

        return run

    turns = Turns({each: runner(each) for each in seconds})
    for _ in range(3 * TURNS + 3):
        turns()
    assert ran == [4, 2, 1] * TURNS + [2] * 3
    assert turns.threads == 2


def _call(width: int) -> tuple[Call, np.ndarray]:
    vectors = np.random.default_rng(0).normal(size=(2, 30, width)).astype(np.float32)
    random = np.random.default_rng(1)
    words = random.integers(0, 30, 500).astype(np.int32)
    contexts = random.integers(0, 30, (500, 6)).astype(np.int32)
    rate = np.float32(0.01)
    given: tuple[Any, ...] = (vectors, words, contexts, np.asarray(rate))
    node = op.skip_gram(*map(cd.tensor, given), batch=100)[0].node.inputs[0]
    after = np.empty_like(vectors)
    kernel = TABLE.kernels("skip_gram", "cpu")[0]
    workspace = np.zeros(kernel.workspace(node), np.uint8)
    return Call(node, (after, np.empty(500, np.float32)), given, workspace), after


def test_a_kernel_has_the_same_bits_in_all_turns() -> None:
    kernel = TABLE.kernels("skip_gram", "cpu")[0]
    with cd.settings.override(threads=4):
        call, after = _call(width=256)
        runner = kernel.bind(call)
    assert isinstance(runner, Turns)
    found = []
    for _ in range(3 * TURNS + 1):
        after.fill(np.nan)
        runner()
        found.append(after.copy())
    assert np.isfinite(found[0]).all()
    assert all(np.array_equal(each, found[0]) for each in found)


def test_what_one_thread_computes_takes_no_turns() -> None:
    bound = []

    def bind(call: Call) -> Any:
        bound.append(call)
        return lambda: None

    call, _ = _call(width=8)
    assert not isinstance(taking_turns(bind)(call), Turns)
    assert len(bound) == 1
    with cd.settings.override(threads=1):
        wide, _ = _call(width=256)
        assert not isinstance(TABLE.kernels("skip_gram", "cpu")[0].bind(wide), Turns)
