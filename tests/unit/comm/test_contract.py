"""Every communicator that needs no other process does what the contract says."""

from __future__ import annotations

import pytest

from caldera.comm import SingleProcess, run_virtual_ranks
from caldera.testing.communicators import CONTRACT, Check


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_one_process(check: Check) -> None:
    check(SingleProcess())


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_virtual_ranks(check: Check, size: int) -> None:
    run_virtual_ranks(size, check)
