"""What tests of choosing kernels share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from caldera.base.config import settings
from tests.unit.kernels.fake_kernels import FakeKernels


@pytest.fixture
def kernels() -> FakeKernels:
    """An empty table."""
    return FakeKernels()


@pytest.fixture
def own_folder(tmp_path: Path) -> Iterator[None]:
    """The test has its own memory on disk."""
    with settings.override(cache_dir=tmp_path, tune_budget_s=10.0, deterministic=False):
        yield
