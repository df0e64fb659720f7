"""Products on our own threads: the same numbers however they are split, and BLAS left as it was."""

from __future__ import annotations

import threading
from contextlib import suppress

import numpy as np
import pytest

import caldera as cd
from caldera.kernels.cpu import blas


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((7, 5), (5, 90)),
        ((90, 5), (5, 7)),
        ((4, 7, 5), (4, 5, 9)),
        ((9, 7, 5), (5, 9)),
        ((2, 1, 7, 5), (3, 5, 9)),
        ((1, 3), (3, 1)),
        ((0, 3), (3, 4)),
        ((3, 0), (0, 4)),
    ],
)
def test_split_products_equal_whole_ones(
    a: tuple[int, ...], b: tuple[int, ...], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blas, "WORTH_SPLITTING", 2)
    generator = np.random.default_rng(0)
    left, right = generator.normal(size=a), generator.normal(size=b)
    expected = left @ right
    out = np.full(expected.shape, np.nan)
    with cd.settings.override(threads=threads):
        blas.product(left, right, out)
    np.testing.assert_allclose(out, expected, rtol=1e-13)


def test_transposed_operands_are_split_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "WORTH_SPLITTING", 2)
    generator = np.random.default_rng(0)
    left, right = generator.normal(size=(6, 40)), generator.normal(size=(30, 6))
    out = np.empty((40, 30))
    with cd.settings.override(threads=2):
        blas.product(left.T, right.T, out)
    np.testing.assert_allclose(out, left.T @ right.T, rtol=1e-13)


@pytest.mark.skipif(blas._get_threads is None, reason="this NumPy has a BLAS we cannot ask")
def test_blas_has_its_threads_back_afterwards() -> None:
    assert blas._get_threads is not None
    assert blas._set_threads is not None
    before = blas._get_threads()
    try:
        blas._set_threads(2)
        started, done = threading.Event(), threading.Event()

        def other() -> None:
            with blas.one_thread:
                started.set()
                done.wait(10)

        thread = threading.Thread(target=other)
        thread.start()
        started.wait(10)
        with suppress(ValueError), blas.one_thread:
            assert blas._get_threads() == 1
            raise ValueError("a kernel failed")
        assert blas._get_threads() == 1, "another plan is still running"
        done.set()
        thread.join()
        assert blas._get_threads() == 2
    finally:
        blas._set_threads(before)
