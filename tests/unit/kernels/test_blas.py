"""One thread for the BLAS while a plan runs, and as many as before afterwards."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from caldera.kernels.cpu import blas


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
