"""Arrays that were made once, and what reading them may ask of the machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from caldera import data
from caldera.base.config import settings
from caldera.core.memory import devices
from caldera.data.datasets.dataset_cache import cached_arrays


def test_data_from_files_is_read_without_a_look_at_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has counted cards cannot be copied: a search would have no workers."""
    x = np.asfortranarray(np.arange(12, dtype=">f4").reshape(4, 3))
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(4))

    def card_count() -> int:
        raise AssertionError("cards were counted")

    with settings.override(cache_dir=tmp_path):
        cached_arrays("some", lambda: {"x": x})
        monkeypatch.setattr(devices, "card_count", card_count)
        again = cached_arrays("some", lambda: pytest.fail("it was made again"))["x"]
    np.testing.assert_array_equal(again, x)
    assert again.dtype == np.float32
    assert again.flags.c_contiguous
    assert len(data.npz(tmp_path / "t.npz", test=0.25).train) == 3
