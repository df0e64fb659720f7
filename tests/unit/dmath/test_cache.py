"""Keep what you have seen: what was fetched once costs nothing the second time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from caldera import comm
from caldera import dmath as dm
from caldera.compiler.sharding.distributions import Blocks, Columns, Grid, Replicated, Rows
from caldera.dmath.session import Handle, Session, SpmdSession
from tests.unit.dmath.programs import leaf

A = np.arange(48.0).reshape(6, 8)
RANKS = range(3)
ROWS, COLUMNS = Rows().of(A.shape, RANKS), Columns().of(A.shape, RANKS)


@pytest.fixture
def session() -> Iterator[Session]:
    dm.disconnect()
    with dm.connect(threads=3) as found:
        yield found


def _sent(session: Session) -> int:
    return sum(sent for _, sent, _ in session.call("moved"))


def _fetched(session: Session, handle: Handle, other: Handle | None = None) -> int:
    """Bytes that ranks send each other for a program that needs an array in columns."""
    before = _sent(session)
    outputs = [leaf(handle).node] + ([] if other is None else [(leaf(other) * 2.0).node])
    found = session.run(outputs, [COLUMNS, ROWS][: len(outputs)])[0]
    moved = _sent(session) - before
    assert found.layout == COLUMNS
    np.testing.assert_array_equal(session.get(found), session.get(handle))
    return moved


def test_the_second_time_nothing_moves_also_in_another_program(session: Session) -> None:
    x, y = session.put(A, ROWS), session.put(A, ROWS)
    moved = A.nbytes * 2 // 3
    assert _fetched(session, x) == moved
    assert _fetched(session, x) == 0
    assert _fetched(session, x, y) == 0
    counts = session.cache
    assert (counts.hits, counts.misses, counts.saved_bytes) == (2, 1, 2 * moved)
    assert counts.nbytes == COLUMNS.nbytes(0, A.dtype)
    # Another array has not been seen, whatever it holds.
    assert _fetched(session, y) == moved


def test_a_matrix_that_products_need_whole_is_gathered_once(session: Session) -> None:
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(8, 4))
    w = session.put(weights, Rows().of(weights.shape, RANKS))
    sent = []
    for _ in range(3):
        batch = rng.normal(size=(300, 8))
        x = session.put(batch, Rows().of(batch.shape, RANKS))
        before = _sent(session)
        (y,) = session.run([(leaf(x) @ leaf(w)).node])
        sent.append(_sent(session) - before)
        np.testing.assert_allclose(session.get(y), batch @ weights, rtol=1e-12)
    assert sent == [2 * weights.nbytes, 0, 0]


def test_what_is_kept_is_bounded_and_the_oldest_goes_first(session: Session) -> None:
    each = COLUMNS.nbytes(0, A.dtype)
    session.limit_cache(2 * each)
    first, second, third = (session.put(A + n, ROWS) for n in range(3))
    assert all(_fetched(session, x) > 0 for x in (first, second))
    assert _fetched(session, first) == 0
    assert _fetched(session, third) > 0
    assert session.cache.nbytes <= 2 * each
    assert _fetched(session, first) == 0
    assert _fetched(session, second) > 0
    session.limit_cache(each - 1)
    assert session.cache.nbytes == 0
    assert _fetched(session, first) == _fetched(session, first) > 0
    assert session.cache.nbytes == 0


def test_what_was_seen_of_an_array_goes_with_it(session: Session) -> None:
    x = session.put(A, ROWS)
    _fetched(session, x)
    kept = session.put(A[:1], Replicated().of((1, 8), RANKS))
    assert session.cache.nbytes > 0
    del x
    session.run([leaf(kept).node])
    assert session.cache.nbytes == 0


def test_an_array_is_brought_to_a_second_layout_meanwhile(session: Session) -> None:
    x = session.put(A, ROWS)
    session.replicate(x, COLUMNS)
    first = session.get(session.run([(leaf(x) + 1.0).node], [ROWS])[0])
    np.testing.assert_array_equal(first, A + 1)
    # What had to move has, or is on its way.
    found = session.run([leaf(x).node], [COLUMNS])[0]
    np.testing.assert_array_equal(session.get(found), A)
    assert (session.cache.hits, session.cache.misses) == (1, 1)
    assert _sent(session) == A.nbytes * 2 // 3


def test_ranks_that_free_at_different_times_still_agree() -> None:
    def work(communicator: comm.Communicator) -> tuple[int, int]:
        session = SpmdSession(communicator)
        session.limit_cache(3 * COLUMNS.nbytes(0, A.dtype))
        held = []
        for number in range(8):
            x = session.put(A + number, ROWS)
            for _ in range(2):
                (y,) = session.run([leaf(x).node], [COLUMNS])
            np.testing.assert_array_equal(session.get(y), A + number)
            if communicator.rank == number % 3:
                # Here it lives on, elsewhere it does not.
                held.append(x)
        return session.cache.hits, session.cache.misses

    assert comm.run_virtual_ranks(3, work) == [(8, 8)] * 3


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_arrays_are_replicated_in_any_layout(dtype: str) -> None:
    values = np.arange(20.0).reshape(5, 4).astype(dtype) * (1 + 1j if dtype[0] == "c" else 1)
    layouts = (Rows(), Columns(), Replicated(), Grid(1, 3), Blocks(2, 3), Rows(ranks=[2, 0]))
    with dm.connect(threads=3) as session:
        for source in layouts:
            for number, target in enumerate(layouts):
                x = dm.array(values, layout=source)
                assert x.replicate(target, wait=number % 2 == 0).layout == x.layout
                before = _sent(session)
                np.testing.assert_array_equal(x.to(layout=target).numpy(), values)
                if number % 2 == 0:
                    assert _sent(session) == before
        assert dm.array(values, layout=Rows()).replicate(wait=False).shape == (5, 4)
        session.replicate(dm.array(values, layout=Rows()).handle, Replicated())
