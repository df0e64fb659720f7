"""Tests keep what they measure in a folder of their own, and start from the same seed."""

from __future__ import annotations

import os
import tempfile

# Before the package is imported: it reads these when it starts. One BLAS thread a worker, because
# the tests themselves run side by side.
os.environ["CALDERA_CACHE"] = tempfile.mkdtemp(prefix="caldera-tests-")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest

import caldera as cd

# The same examples every time, and no deadline: a busy machine is not a failure.
hypothesis.settings.register_profile("caldera", deadline=None, derandomize=True)
hypothesis.settings.load_profile("caldera")


@pytest.fixture(autouse=True)
def _same_seed() -> None:
    cd.seed(0)
