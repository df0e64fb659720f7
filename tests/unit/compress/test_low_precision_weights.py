"""Weights in low precision."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera.comm import Communicator, run_virtual_ranks
from caldera.compress import LowPrecisionWeights


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
