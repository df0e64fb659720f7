"""ONNX's own tests. Compiling all of them takes a minute: `python -m tools.onnx_score`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
from onnx.reference.ops import op_pool_common

from tools import onnx_score as score

EVERY = 20
_pool = op_pool_common.pool


def pooled(
    padded: np.ndarray,
    x_shape: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    out_shape: Sequence[int],
    kind: str,
    *rest: Any,
    p: int = 1,
    **more: Any,
) -> np.ndarray:
    """What ONNX computes window by window in Python: its three large cases take half of the time of
    all."""
    if len(kernel) < 3 or set(strides) != {1} or rest or more or padded.shape != tuple(x_shape):
        return np.asarray(
            _pool(padded, x_shape, kernel, strides, out_shape, kind, *rest, p=p, **more)
        )
    axes = tuple(range(2, padded.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(padded, tuple(kernel), axes)
    inside = tuple(range(padded.ndim, windows.ndim))
    if kind == "LPPOOL":
        return (np.abs(windows) ** p).sum(inside) ** (1.0 / p)
    return windows.max(inside) if kind == "MAX" else windows.mean(inside)


def test_the_tests_of_onnx_pass_but_those_with_a_reason() -> None:
    # One test, because the cases take seconds to make.
    with mock.patch.object(op_pool_common, "pool", pooled):
        cases = score.cases()
    outcomes = [score.run_case(case, compiled=False) for case in cases]
    assert score.surprises(outcomes) == []
    assert sum(each.has_passed for each in outcomes) >= 2010
    compiled = [score.run_case(case) for case in cases[::EVERY]]
    assert score.surprises(compiled) == []
    assert sum(each.was_compiled for each in compiled) > 0.7 * len(compiled)


def test_the_report_says_what_passes_and_why_the_rest_does_not() -> None:
    exp = frozenset({("", "Exp")})
    outcomes = [
        score.TestResult("test_exp", exp, was_compiled=True),
        score.TestResult(
            "test_nonzero", frozenset({("", "NonZero")}), in_numpy=frozenset({"NonZero"})
        ),
        score.TestResult(
            "test_bernoulli", frozenset({("", "Bernoulli")}), "AssertionError: differ"
        ),
        score.TestResult("test_exp_example", exp, "AssertionError: differ"),
    ]
    text = score.report(outcomes, "title")
    assert "passed 2 of 4 tests (3 operators)" in text
    assert "1 as one compiled plan" in text
    assert "test_bernoulli: random numbers" in text
    assert "use only Caldera's ops, 1 of 2 pass" in text
    assert score.surprises(outcomes) == ["test_exp_example: AssertionError: differ"]


def test_an_excluded_test_that_passes_is_a_surprise() -> None:
    passing = score.TestResult("test_bernoulli", frozenset({("", "Bernoulli")}))
    assert score.surprises([passing]) == ["test_bernoulli passes"]
