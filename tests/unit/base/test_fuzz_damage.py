"""tests/fuzz/damage.py: a few damaged files of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import damage

GOOD = {"refused", "equal", "torn end"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", damage.KINDS)
def test_damage_is_noticed(kind: str, tmp_path: Path) -> None:
    found = damage.outcomes(kind, 40, 5, tmp_path)
    assert set(found) <= GOOD, found
    assert found["refused"] > 10


def test_what_is_not_noticed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = damage.Kind(
        lambda folder: (folder / "a").write_bytes(bytes(100)),
        lambda folder: (folder / "a").read_bytes(),
    )
    monkeypatch.setattr(damage, "KINDS", {"deaf": deaf})
    assert set(damage.outcomes("deaf", 5, 1, tmp_path)) == {"silent"}
