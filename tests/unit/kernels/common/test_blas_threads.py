"""One thread for the BLAS while a plan runs, and as many as before afterwards."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from caldera.kernels.common import blas_threads


@pytest.mark.skipif(blas_threads._get_threads is None, reason="this NumPy has a BLAS we cannot ask")
def test_blas_has_its_threads_back_afterwards() -> None:
    assert blas_threads._get_threads is not None
    assert blas_threads._set_threads is not None
    before = blas_threads._get_threads()
    try:
        blas_threads._set_threads(2)
        started, done = threading.Event(), threading.Event()

        def other() -> None:
            with blas_threads.single_threaded_blas:
                started.set()
                done.wait(10)

        thread = threading.Thread(target=other)
        thread.start()
        started.wait(10)
        with suppress(ValueError), blas_threads.single_threaded_blas:
            assert blas_threads._get_threads() == 1
            raise ValueError("a kernel failed")
        assert blas_threads._get_threads() == 1, "another plan is still running"
        done.set()
        thread.join()
        assert blas_threads._get_threads() == 2
    finally:
        blas_threads._set_threads(before)
