"""tests/fuzz/exported.py: a few random networks, compared with their exported libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import exported as fuzz
from tests.unit.export.loaded import needs, planned

pytestmark = needs("cc", "ar")


@pytest.mark.parametrize("seed", [10, 24])
def test_the_library_of_a_random_network(tmp_path: Path, seed: int) -> None:
    outcome = fuzz.compared(fuzz.network_of(seed), tmp_path)
    assert outcome.what == "agreed", outcome.detail


def test_other_bits_are_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "planned", lambda *given, **more: planned(*given, **more) + 1e-6)
    outcome = fuzz.compared(fuzz.network_of(10), tmp_path)
    assert outcome.what == "difference"
    assert "other bits" in outcome.detail
