"""Sums along a fixed tree."""

from __future__ import annotations

import numpy as np
import pytest

from caldera.comm import Communicator, run_virtual_ranks
from caldera.comm.reproducible_sum import leaf_range, tree_sum


@pytest.mark.parametrize("elements", [1, 3, 10])
@pytest.mark.parametrize("leaves", [4, 7, 8])
def test_the_sum_has_the_same_bits_for_any_number_of_ranks(leaves: int, elements: int) -> None:
    rows = np.random.default_rng(0).normal(size=(leaves, elements)).astype("float32")

    def work(comm: Communicator) -> bytes:
        first, last = leaf_range(comm.rank, comm.size, leaves)
        return tree_sum(rows[first:last].copy(), leaves, comm).tobytes()

    found = {bits for ranks in (1, 2, 3, 4) for bits in run_virtual_ranks(ranks, work)}
    assert len(found) == 1
    np.testing.assert_allclose(np.frombuffer(found.pop(), "float32"), rows.sum(0), rtol=1e-5)


def test_it_is_a_tree_and_not_a_chain() -> None:
    """(a + b) + (c + d), where adding one after the other loses the small numbers."""
    rows = np.array([[1e8], [-1e8], [1.0], [2.0]], "float32")[[0, 2, 1, 3]]

    def work(comm: Communicator) -> float:
        first, last = leaf_range(comm.rank, comm.size, 4)
        return tree_sum(rows[first:last].copy(), 4, comm).item()

    left = np.float32(1e8) + np.float32(1.0)
    right = np.float32(-1e8) + np.float32(2.0)
    assert run_virtual_ranks(2, work) == [float(left + right)] * 2
