"""What wrong calls may leave behind is ended after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from caldera import dmath


@pytest.fixture(autouse=True)
def _no_session_is_left() -> Iterator[None]:
    yield
    dmath.disconnect()
