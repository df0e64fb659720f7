"""Every test has a cache of its own and finds no data set by accident."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import caldera as cd


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache folder of this test."""
    monkeypatch.delenv("CALDERA_DATA", raising=False)
    with cd.settings.override(cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache"
