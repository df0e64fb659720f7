"""Sparse sums equal dense ones: every algorithm, any number of ranks, any overlap."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import caldera as cd
from caldera.comm import Communicator, SingleProcess, run_virtual_ranks
from caldera.compress import Link, SparseVector, predicted_seconds, sparse_allreduce
from caldera.compress.codecs import QsgdCodec
from caldera.compress.messages import RandomStream
from caldera.compress.sparse import ALGORITHMS, SparseCodec, fastest, sum_sparse

NAMES = list(ALGORITHMS)


def _sums(vectors: np.ndarray, algorithm: str) -> list[np.ndarray]:
    def work(comm: Communicator) -> np.ndarray:
        mine = SparseVector.of(vectors[comm.rank])
        return sparse_allreduce(mine, comm, algorithm=algorithm)

    return run_virtual_ranks(len(vectors), work)


def _overlap(kind: str, ranks: int, length: int) -> np.ndarray:
    """Whole numbers, so that sums are exact in any order."""
    rng = np.random.default_rng(ranks)
    values = rng.integers(1, 100, size=(ranks, length)).astype(np.float32)
    if kind == "none":
        mask = np.arange(length) % ranks == np.arange(ranks)[:, None]
    elif kind == "full":
        mask = np.tile(rng.random(length) < 0.1, (ranks, 1))
    elif kind == "empty ranks":
        mask = (rng.random((ranks, length)) < 0.2) & (np.arange(ranks)[:, None] % 3 == 1)
    elif kind == "nothing":
        mask = np.zeros((ranks, length), bool)
    else:
        mask = rng.random((ranks, length)) < 0.05
    return values * mask


@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize("kind", ["none", "full", "some", "empty ranks", "nothing"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 6, 7, 8])
def test_the_sum_is_that_of_dense_vectors(algorithm: str, kind: str, ranks: int) -> None:
    vectors = _overlap(kind, ranks, 1000)
    for found in _sums(vectors, algorithm):
        np.testing.assert_array_equal(found, vectors.sum(axis=0))


@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize("ranks", [3, 4, 7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_ranks_have_the_same_bits(algorithm: str, ranks: int, dtype: str) -> None:
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(ranks, 900)) * (rng.random((ranks, 900)) < 0.3)).astype(dtype)
    found = _sums(vectors, algorithm)
    assert all(each.tobytes() == found[0].tobytes() for each in found)
    assert found[0].dtype == dtype
    tolerance = 1e-5 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(found[0], vectors.sum(axis=0), rtol=tolerance, atol=tolerance)


_vectors = st.integers(1, 6).flatmap(
    lambda ranks: st.integers(1, 70).flatmap(
        lambda length: st.lists(
            st.lists(st.sampled_from([0, 0, 0, 0, 1, -2, 7]), min_size=length, max_size=length),
            min_size=ranks,
            max_size=ranks,
        )
    )
)


@settings(max_examples=40)
@given(_vectors, st.sampled_from(NAMES))
def test_any_vectors_at_any_number_of_ranks(vectors: list[list[int]], algorithm: str) -> None:
    array = np.array(vectors, np.float32)
    for found in _sums(array, algorithm):
        np.testing.assert_array_equal(found, array.sum(axis=0))


def _quantised(algorithm: str, vectors: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """What each rank has as the sum, and what all ranks have kept, with values in four bits."""
    kept = np.zeros_like(vectors)

    def work(comm: Communicator) -> np.ndarray:
        mine = SparseVector.of(vectors[comm.rank])
        coding = SparseCodec(QsgdCodec(4), RandomStream(1, 2, "w"), comm.rank, kept[comm.rank])
        total = sum_sparse(mine, comm, coding, mine.places.size, algorithm)
        return total if isinstance(total, np.ndarray) else total.dense()

    return run_virtual_ranks(len(vectors), work), kept


@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_with_rounded_values_the_sum_and_what_is_kept_are_the_whole(
    algorithm: str, ranks: int
) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(ranks, 4000)) * (rng.random((ranks, 4000)) < 0.1)
    vectors = vectors.astype(np.float32)
    found, kept = _quantised(algorithm, vectors)
    assert all(each.tobytes() == found[0].tobytes() for each in found)
    whole = found[0] + kept.sum(axis=0)
    np.testing.assert_allclose(whole, vectors.sum(axis=0), atol=2e-5)
    if ranks > 1:
        assert np.abs(kept).max() > 0


@pytest.mark.parametrize("algorithm", NAMES)
def test_rounding_is_the_same_from_run_to_run(algorithm: str) -> None:
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(3, 500)) * (rng.random((3, 500)) < 0.2)).astype(np.float32)
    first, second = _quantised(algorithm, vectors), _quantised(algorithm, vectors)
    assert first[0][0].tobytes() == second[0][0].tobytes()
    assert first[1].tobytes() == second[1].tobytes()


def _bytes_sent(ranks: int, work: Callable[[Communicator], object]) -> int:
    def counted(comm: Communicator) -> int:
        work(comm)
        return comm.traffic.total.bytes_sent

    return max(run_virtual_ranks(ranks, counted))


@pytest.mark.parametrize("density", [0.01, 0.2])
def test_the_cost_model_knows_the_bytes(density: float) -> None:
    """With no latency, predicted seconds times the bandwidth are bytes."""
    length, ranks = 100_000, 4
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(ranks, length)) * (rng.random((ranks, length)) < density)
    predicted = predicted_seconds(
        length, int(length * density), ranks, bits=32, link=Link(latency=0, bandwidth=1)
    )
    for algorithm in NAMES:
        sent = _bytes_sent(
            ranks,
            lambda comm, name=algorithm: sparse_allreduce(  # type: ignore[misc]
                SparseVector.of(vectors[comm.rank].astype(np.float32)), comm, algorithm=name
            ),
        )
        assert sent == pytest.approx(predicted[algorithm], rel=0.05)


def test_the_cost_model_chooses_by_size_density_and_link() -> None:
    def best(length: int, density: float, link: Link, ranks: int = 8) -> str:
        return fastest(length, int(length * density), ranks, bits=4, link=link)

    slow = Link(latency=5e-5, bandwidth=12.5e6)
    assert best(10_000, 1 / 32, slow) == "recursive_doubling"
    assert best(1_000_000, 1 / 32, slow) == "split_allgather"
    assert best(1_000_000, 0.4, slow) == "dense_switching"
    distant = Link(latency=1e-2, bandwidth=1e9)
    assert best(1_000_000, 1 / 32, distant) == "split_allgather"
    assert best(1_000_000, 1 / 32, distant, ranks=2) == "recursive_doubling"


def test_the_link_is_measured_alike_on_all_ranks() -> None:
    first, *others = run_virtual_ranks(3, Link.measured)
    assert all(each == first for each in others)
    assert first.latency > 0
    assert first.bandwidth > 0


def test_names_that_do_not_exist_are_refused() -> None:
    with pytest.raises(cd.ConfigError, match="did you mean 'split_allgather'"):
        sparse_allreduce(SparseVector.of(np.ones(3)), SingleProcess(), algorithm="split_gather")
