"""Factors of dense layers, and weights in low precision."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera.comm import Communicator, SingleProcess, run_virtual_ranks
from caldera.compress import LowPrecisionWeights, factors_are_smaller, sum_by_factors


@pytest.mark.parametrize("rows", [[5], [3, 3], [4, 0, 2], [1, 2, 3, 4]])
def test_the_product_of_gathered_factors_is_the_sum_of_gradients(rows: list[int]) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(n, 6)) for n in rows]
    outputs = [rng.normal(size=(n, 5)) for n in rows]

    def work(comm: Communicator) -> np.ndarray:
        return sum_by_factors(inputs[comm.rank], outputs[comm.rank], comm)

    expected = sum(x.T @ g for x, g in zip(inputs, outputs, strict=True))
    found = run_virtual_ranks(len(rows), work)
    np.testing.assert_allclose(found[0], expected, atol=1e-12)
    assert all(each.tobytes() == found[0].tobytes() for each in found)


@pytest.mark.parametrize("samples", [10, 400])
def test_factors_are_used_where_they_send_less(samples: int) -> None:
    """The rule agrees with the bytes that either way sends."""
    inputs, outputs, ranks = 64, 48, 4

    def by_factors(comm: Communicator) -> int:
        n = samples // ranks
        sum_by_factors(np.ones((n, inputs), np.float32), np.ones((n, outputs), np.float32), comm)
        return comm.traffic.total.bytes_sent

    def by_sum(comm: Communicator) -> int:
        comm.algorithm = "ring"
        gradient = np.ones((inputs, outputs), np.float32)
        comm.Allreduce(gradient, gradient)
        return comm.traffic.total.bytes_sent

    less = run_virtual_ranks(ranks, by_factors)[0] < run_virtual_ranks(ranks, by_sum)[0]
    assert factors_are_smaller(samples, inputs, outputs, ranks) == less


def test_factors_must_have_a_row_for_each_sample() -> None:
    with pytest.raises(cd.ShapeError, match="a row for each sample"):
        sum_by_factors(np.ones((3, 2)), np.ones((4, 2)), SingleProcess())


def test_small_updates_are_not_lost_where_rounding_to_the_nearest_loses_them() -> None:
    low = LowPrecisionWeights("bfloat16", seed=2)
    weights, nearest = np.ones(4000, np.float32), np.ones(4000, low.dtype)
    for _ in range(50):
        weights -= np.float32(2e-4)
        low.round("w", weights)
        nearest = (nearest.astype(np.float32) - np.float32(2e-4)).astype(low.dtype)
    assert (nearest == 1).all()
    assert weights.mean() == pytest.approx(0.99, abs=5e-4)
    assert (weights.astype(low.dtype).astype(np.float32) == weights).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_weights_are_broadcast_in_the_format_and_equal_everywhere(dtype: str) -> None:
    def work(comm: Communicator) -> tuple[bytes, int]:
        low = LowPrecisionWeights(dtype)
        rng = np.random.default_rng(comm.rank)
        weights = {"w": rng.normal(size=(8, 5)).astype(np.float32), "b": np.zeros(3, np.float32)}
        before = weights["w"].copy()
        low.broadcast(weights, comm, root=1)
        if comm.rank == 1:
            np.testing.assert_allclose(weights["w"], before, rtol=0.3, atol=0.01)
        stored = low.store("w", weights["w"])
        np.testing.assert_array_equal(stored.astype(np.float32), weights["w"])
        return weights["w"].tobytes(), low.dtype.itemsize * 43

    found = run_virtual_ranks(3, work)
    assert len({each for each, _ in found}) == 1


def test_ranks_that_round_the_same_weights_stay_equal_and_a_restored_one_follows() -> None:
    one, other = LowPrecisionWeights("float16", seed=4), LowPrecisionWeights("float16", seed=4)
    x = np.random.default_rng(0).normal(size=100).astype(np.float32)
    assert one.store("w", x).tobytes() == other.store("w", x).tobytes()
    resumed = LowPrecisionWeights("float16", seed=4)
    resumed.restore(one.state())
    assert resumed.store("w", x).tobytes() == one.store("w", x).tobytes()
    assert other.store("w", x).tobytes() != other.store("w", x).tobytes()


def test_a_format_that_does_not_exist_is_refused() -> None:
    with pytest.raises(cd.ConfigError, match="did you mean 'bfloat16'"):
        LowPrecisionWeights("bfloat15")
