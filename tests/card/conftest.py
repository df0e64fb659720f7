"""A card for tests: the real one where there is one, else the one the host plays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from caldera.compiler.lazy import forget_plans
from caldera.core.memory import Device
from caldera.core.memory import device as find_device
from caldera.core.memory.gpus import card_count
from caldera.kernels.cuda import fourier
from caldera.kernels.cuda.linalg import cusolver
from caldera.kernels.cuda.runtime import driver
from tests.card import accepted
from tests.card.emulated import PLAYED, EmulatedCard, EmulatedDriver, compiler, emulated_card

HERE = Path(__file__).parent


STAND_INS = {"float16": "bfloat16", "float64": "float32"}
"""Sources that differ in nothing but the type: where a card is played, one of the two is enough."""
EVERY_TYPE = ("test_elementwise.py", "test_every_op.py")
"""Files whose subject is the types."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "played(**properties): what a played card has")
    accepted.strict = config.getoption("accept_card_sources")
    accepted.anew = config.getoption("compile_card_sources")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what another type stands for: playing a card takes a C++ compiler for each."""
    if card_count():
        return
    for item in items:
        given = getattr(item, "callspec", None)
        if given is None or item.path.parent != HERE or item.path.name.startswith(EVERY_TYPE):
            continue
        for other in STAND_INS.keys() & {str(value) for value in given.params.values()}:
            reason = f"without a card {STAND_INS[other]} stands for {other}"
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def card(request: pytest.FixtureRequest) -> Iterator[Device]:
    """A device whose kernels are those of a card.

    `@pytest.mark.played(multiprocessors=132)` says what a played card has.
    """
    if card_count():
        yield find_device("cuda")
        return
    if compiler() is None:
        pytest.skip("neither a card nor a C++ compiler is here")
    marks = [mark.kwargs for mark in request.node.iter_markers("played")]
    driver.use(EmulatedDriver(replace(PLAYED, **marks[0]) if marks else PLAYED))
    played = emulated_card()
    try:
        yield played
    finally:
        forget_plans()
        driver.use(None)
        # After each launch all guards are looked at: those of memory that nobody has take time.
        played.pool.trim()


class _Transforms:
    """A plan of cuFFT."""

    def fft(self, given: np.ndarray, out: np.ndarray, direction: int) -> None:
        """Along the last axis, without a factor in either direction."""
        out[...] = np.fft.fft(given) if direction < 0 else np.fft.ifft(given, norm="forward")


@pytest.fixture
def libraries(card: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A card whose libraries are NumPy, unless it has its own."""
    if isinstance(card, EmulatedCard):
        for module in (cusolver, fourier):
            monkeypatch.setattr(module, "card_count", lambda: 1)
            monkeypatch.setattr(module, "cupy_array", lambda array: array)
        monkeypatch.setattr(cusolver, "cupy", lambda: np)
        monkeypatch.setattr(np, "asnumpy", np.asarray, raising=False)
        state = SimpleNamespace(errstate=lambda linalg: nullcontext())
        monkeypatch.setattr(cusolver, "optional_import", lambda *_: state)
        monkeypatch.setattr(fourier, "current_card", lambda: 0)
        monkeypatch.setattr(fourier, "_plan", lambda *_: _Transforms())
    return card
