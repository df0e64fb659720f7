"""What tests of the planner share."""

from __future__ import annotations

import pytest

from caldera.planner import compression_cost


@pytest.fixture(autouse=True)
def _short_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """What encoding takes is measured on shorter gradients: a dozen codecs take seconds else."""
    monkeypatch.setattr(compression_cost, "_LONG", 1 << 16)
