"""Training on a device with memory of its own beside training on the CPU."""

from __future__ import annotations

from typing import Any

from caldera.base.config import settings
from caldera.train.model import Model
from tests.unit.train.small import same_bits, values

APART = "loopback:5"


def history_of(model: Model, given: Any, **options: Any) -> dict[str, list[Any]]:
    """Train; everything in the history but the seconds."""
    history = model.fit(given, **{"epochs": 2, "verbose": 0, **options})
    return {name: history[name] for name in history if name not in ("seconds", "epoch")}


def assert_same(make: Any, given: Any, **options: Any) -> None:
    """Training on the device gives what training on the CPU does, to the last bit."""
    here, there = make(device="cpu"), make(device=APART)
    # Kernels measured after the first step of one run would serve the other from its start.
    with settings.override(deterministic=True):
        assert history_of(there, given, **options) == history_of(here, given, **options)
    assert same_bits(values(here), values(there))
