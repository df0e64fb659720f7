"""A card for tests: the real one where there is one, else the one the host plays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from caldera.kernels.cuda import driver
from caldera.lazy import forget_plans
from caldera.memory import Device
from caldera.memory import device as find_device
from caldera.memory.cuda import card_count
from tests.card.emulated import EmulatedDriver, compiler, emulated_card


@pytest.fixture
def card() -> Iterator[Device]:
    """A device whose kernels are those of a card."""
    if card_count():
        yield find_device("cuda")
        return
    if compiler() is None:
        pytest.skip("neither a card nor a C++ compiler is here")
    driver.use(EmulatedDriver())
    try:
        yield emulated_card()
    finally:
        forget_plans()
        driver.use(None)
