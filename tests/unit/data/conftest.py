"""Every test has a cache of its own, with the kernels of all, and finds no data set by accident."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import caldera as cd
from tests.object_cache import link_kernels


@pytest.fixture(autouse=True)
def cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The cache folder of this test; `tmp_path` is left empty."""
    monkeypatch.delenv("CALDERA_DATA", raising=False)
    folder = tmp_path_factory.mktemp("cache")
    link_kernels(folder)
    with cd.settings.override(cache_dir=folder):
        yield folder
