"""Ranks in threads: the same sums everywhere, and no rank hangs because another died."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.comm import Communicator, SingleProcess, run_virtual_ranks


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_allreduce_gives_every_rank_the_same_bits(size: int) -> None:
    parts = np.random.default_rng(0).normal(size=(size, 5)).astype("float32")

    def work(comm: Communicator) -> np.ndarray:
        total = np.empty(5, "float32")
        for _ in range(3):
            comm.Allreduce(parts[comm.rank], total)
        return total

    results = run_virtual_ranks(size, work)
    np.testing.assert_allclose(results[0], parts.sum(0), rtol=1e-5, atol=1e-6)
    assert all(np.array_equal(result, results[0]) for result in results)


def test_a_rank_that_raises_ends_all_of_them() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            raise ValueError("rank 1 has a problem")
        comm.Barrier()

    with pytest.raises(ValueError, match="rank 1 has a problem"):
        run_virtual_ranks(3, work)


def test_the_gradient_of_a_sum_over_ranks_sums_what_arrives() -> None:
    """loss = sum over ranks of weight * (sum over ranks of x)**2, as one rank would write it."""
    start = np.array([1.0, 2.0, -1.0])

    def work(comm: Communicator) -> np.ndarray:
        x = op.var("x", (), fill=start[comm.rank], dtype="float64", device=f"loopback:{comm.rank}")
        weight = float(comm.rank + 1)
        loss = weight * op.square(op.all_sum(x))
        return cd.compile(op.grad(loss, x), communicator=comm).run()[0].numpy().copy()

    expected = (1 + 2 + 3) * 2 * start.sum()
    np.testing.assert_allclose(run_virtual_ranks(3, work), [expected] * 3)


def test_alone_a_sum_over_ranks_is_the_value() -> None:
    x = op.var("x", (3,), fill=cd.uniform())
    plan = cd.compile(op.all_sum(x * 2.0), communicator=SingleProcess())
    np.testing.assert_array_equal(plan.run()[0].numpy(), 2 * x.numpy())
