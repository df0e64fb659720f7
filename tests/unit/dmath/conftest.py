"""Each file begins and ends without a session of distributed arrays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from caldera import dmath


@pytest.fixture(scope="module", autouse=True)
def _no_session() -> Iterator[None]:
    """Tests of another file that ran before, in whatever order, may have left one."""
    dmath.disconnect()
    yield
    dmath.disconnect()
