"""Sessions, with ranks as threads or in this process: what is sent, kept, freed and refused."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from caldera import comm, op
from caldera import dmath as dm
from caldera.compiler.sharding.distributions import Columns, Rows
from caldera.dmath import workers
from caldera.dmath.master import Master
from caldera.dmath.protocol import FRAME_BYTES, SERVICES
from caldera.dmath.rank import Rank
from caldera.dmath.session import Session, SpmdSession
from caldera.errors import CommError, ConfigError, DataError
from tests.unit.dmath.programs import computed, everywhere, leaf

A = np.arange(12.0).reshape(3, 4)


@pytest.fixture(params=["one", "threads"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    dm.disconnect()
    with dm.connect(1) if request.param == "one" else dm.connect(threads=3) as found:
        yield found


@pytest.fixture
def master() -> Iterator[Master]:
    dm.disconnect()
    with dm.connect(threads=3) as found:
        assert isinstance(found, Master)
        yield found


def test_what_is_put_comes_back_in_any_layout(session: Session) -> None:
    ranks = range(session.ranks)
    for layout in (Rows(), Columns()):
        for array in (A, A.astype("float32"), A > 3, np.zeros((0, 4)), A.astype("complex64")):
            handle = session.put(array, layout.of(array.shape, ranks))
            found = session.get(handle)
            assert found.dtype == array.dtype
            np.testing.assert_array_equal(found, array)


def test_programs_run_and_their_results_are_arrays(session: Session) -> None:
    x = leaf(everywhere(session, A))
    total, largest = session.run([op.sum(x, axis=0).node, op.max(x * 2.0).node])
    np.testing.assert_array_equal(session.get(total), A.sum(0))
    assert session.get(largest) == 22
    again = leaf(total) * 10.0 + np.arange(4.0)
    np.testing.assert_array_equal(computed(session, again), A.sum(0) * 10 + np.arange(4))


def test_every_rank_may_run_the_script() -> None:
    def work(communicator: comm.Communicator) -> tuple[list[float], int]:
        session = SpmdSession(communicator)
        handle = session.put(A, Columns().of(A.shape, range(communicator.size)))
        np.testing.assert_array_equal(session.get(handle), A)
        found = computed(session, leaf(everywhere(session, A[0])) * 2.0)
        return found.tolist(), sum(session.call("nbytes")) > 0

    assert comm.run_virtual_ranks(3, work) == [((A[0] * 2).tolist(), True)] * 3


def test_a_step_costs_one_short_message_a_worker_once_it_was_sent(master: Master) -> None:
    state = [everywhere(master, A), everywhere(master, A[0])]

    def step() -> None:
        x, m = map(leaf, state)
        moment = m * 0.9 + op.sum(x, axis=0) * 0.1
        state[:] = master.run([(x - moment * 0.01).node, moment.node])

    step()
    step()
    before = master.traffic.mark()
    for _ in range(20):
        step()
    counted = master.traffic.since(before)
    assert set(counted) == {"control"}
    assert counted["control"].messages == 20 * master.ranks
    assert counted["control"].bytes_sent == 20 * master.ranks * FRAME_BYTES < 2000 * master.ranks
    x, m = A, A[0]
    for _ in range(22):
        m = m * 0.9 + x.sum(0) * 0.1
        x = x - m * 0.01
    np.testing.assert_allclose(master.get(state[0]), x, rtol=1e-12)
    # Of all the arrays that there were, two are left.
    gc.collect()
    master.run([leaf(state[0]).node])
    assert max(master.call("nbytes")) <= 3 * A.nbytes


def test_many_parameters_take_no_more_bytes(master: Master) -> None:
    state = [everywhere(master, np.full(2, float(i))) for i in range(40)]
    # The graph meets them in another order than that in which they are made.
    order = np.random.default_rng(0).permutation(40)
    fixed = leaf(everywhere(master, np.ones(2)))
    sent = []
    for _ in range(4):
        before = master.traffic.mark()
        changed = master.run([(leaf(state[i]) + fixed).node for i in order])
        state = [changed[place] for place in np.argsort(order)]
        sent.append(master.traffic.since(before)["control"].bytes_sent // master.ranks)
    # The second step finds them in another order than the first; after that they move on evenly.
    assert sent[2:] == [FRAME_BYTES] * 2
    assert master.get(state[39]).tolist() == [43.0, 43.0]


def test_arrays_that_nobody_holds_are_freed_with_the_next_message(session: Session) -> None:
    kept = everywhere(session, np.zeros(10))
    for _ in range(5):
        everywhere(session, np.zeros(1000))
    gc.collect()
    session.run([leaf(kept).node])
    assert max(session.call("nbytes")) <= 3 * 80


def _broken(rank: Rank) -> int:
    if rank.communicator.rank == 1:
        raise DataError.build("a file", got="nothing")
    return 0


def test_a_service_that_refuses_names_the_worker(
    master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SERVICES, "broken", _broken)
    x = everywhere(master, A)
    with pytest.raises(DataError, match="worker 1 of 3: a file: got nothing") as caught:
        master.call("broken")
    assert "_broken" in caught.value.__notes__[0]
    np.testing.assert_array_equal(master.get(x), A)


def test_a_worker_that_raises_is_named_with_its_traceback_and_all_go_on(
    master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Rank.run

    def fails(self: Rank, number: int, leaves: list[int], first: int) -> None:
        if self.communicator.rank == 2 and number == 1:
            raise np.linalg.LinAlgError("Singular matrix")
        # The others wait for it.
        if number == 1:
            self.communicator.Barrier()
        run(self, number, leaves, first)

    monkeypatch.setattr(Rank, "run", fails)
    x = everywhere(master, A)
    (good,) = master.run([(leaf(x) * 2.0).node])
    for _ in range(3):
        (bad,) = master.run([(leaf(x) * 3.0).node])
        began = time.monotonic()
        with pytest.raises(np.linalg.LinAlgError, match="worker 2 of 3: Singular") as caught:
            master.get(bad)
        assert time.monotonic() - began < 40
        assert 'raise np.linalg.LinAlgError("Singular matrix")' in caught.value.__notes__[0]
        # What was there still is, and what was not computed is not.
        np.testing.assert_array_equal(master.get(good), A * 2)
        with pytest.raises(CommError, match=r"expected array \d+, got none"):
            master.get(bad)
    np.testing.assert_array_equal(computed(master, leaf(x) * 4.0), A * 4)


def test_a_failure_is_told_with_the_next_order_as_well(
    master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = everywhere(master, A)
    run, failed = Rank.run, threading.Event()

    def fails(self: Rank, number: int, leaves: list[int], first: int) -> None:
        if self.communicator.rank == 0:
            raise RuntimeError("out of luck")
        run(self, number, leaves, first)

    def told(self: workers.RankWorker, error: Exception) -> None:
        fail(self, error)
        failed.set()

    fail = workers.RankWorker._fail
    monkeypatch.setattr(workers.RankWorker, "_fail", told)
    monkeypatch.setattr(Rank, "run", fails)
    master.run([leaf(x).node])
    assert failed.wait(10)
    with pytest.raises(CommError, match="worker 0 of 3: RuntimeError: out of luck"):
        master.run([leaf(x).node])


def test_a_worker_that_does_not_come_back_ends_the_session(
    master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def fails(self: Rank, number: int, leaves: list[int], first: int) -> None:
        if self.communicator.rank == 0:
            raise ValueError("no")
        release.wait(30)

    monkeypatch.setattr(Rank, "run", fails)
    monkeypatch.setattr("caldera.dmath.master.COME_BACK_S", 0.2)
    x = everywhere(master, A)
    (y,) = master.run([leaf(x).node])
    with pytest.raises(ValueError, match="worker 0 of 3: no; the session has ended"):
        master.get(y)
    release.set()
    with pytest.raises(
        ConfigError, match="expected a session that is open, got one that has ended"
    ):
        master.put(A, Rows().of(A.shape, range(3)))


def test_an_interrupt_releases_the_workers(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Rank.run

    def waits(self: Rank, number: int, leaves: list[int], first: int) -> None:
        if number == 0:
            self.communicator.Recv(np.empty(1), self.communicator.rank)
        run(self, number, leaves, first)

    monkeypatch.setattr(Rank, "run", waits)
    x = everywhere(master, A)
    (y,) = master.run([leaf(x).node])
    receive = master._reports.receive
    calls = iter(range(10))

    def interrupted(seconds: float | None = None) -> object:
        if next(calls) == 1:
            raise KeyboardInterrupt
        return receive(seconds)

    monkeypatch.setattr(master._reports, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        master.get(y)
    np.testing.assert_array_equal(computed(master, leaf(x) * 2.0), A * 2)


def test_an_answer_that_nobody_took_is_not_that_of_another_question(
    master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    ones, twos = (everywhere(master, np.full(5, number)) for number in (1.0, 2.0))
    for cause in (KeyboardInterrupt, MemoryError):

        def breaks_off(*_: Any, cause: Any = cause) -> None:
            raise cause

        # After that, ranks go on with other communicators.
        monkeypatch.setattr(master._control, "Recv", breaks_off)
        with pytest.raises(cause):
            master.get(ones)
        np.testing.assert_array_equal(master.get(twos), np.full(5, 2.0))
        np.testing.assert_array_equal(computed(master, leaf(ones) * 3.0), np.full(5, 3.0))


def test_connecting_twice_and_wrong_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    dm.disconnect()
    with pytest.raises(ConfigError, match="expected workers= an integer from 1 to"):
        dm.connect(0)
    with pytest.raises(ConfigError, match="expected workers or threads="):
        dm.connect(2, threads=2)
    with dm.connect(1) as session:
        assert dm.connect(1) is session is dm.current()
        with pytest.raises(ConfigError, match=r"got one of 1 ranks and the wish for 2; dm\.disc"):
            dm.connect(threads=2)
    assert not session.is_open
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "5")
    with pytest.raises(ConfigError, match="expected 4 workers: 5 processes were started, and one"):
        dm.connect(8)


def test_who_connects_later_takes_the_place_of_this_process_alone() -> None:
    dm.disconnect()
    early = dm.ones(3).eval()
    with dm.connect(threads=2) as session:
        assert dm.current() is session
        assert early.numpy().tolist() == [1.0] * 3
        with pytest.raises(ConfigError, match="got one that was made before dm"):
            (early + dm.ones(3)).numpy()
    assert dm.current().ranks == 1


def test_arrays_of_a_session_that_has_ended_are_refused() -> None:
    dm.disconnect()
    with dm.connect(threads=2) as first:
        x = everywhere(first, A)
        with pytest.raises(ConfigError, match=r"hint|dm\.array"):
            first.run([(op.var("w", (4,)) * 2.0).node])
    with dm.connect(threads=2) as second:
        with pytest.raises(ConfigError, match="an array of an ended session"):
            second.run([leaf(x).node])
        with pytest.raises(ConfigError, match="an array of an ended session"):
            second.get(x)
    with pytest.raises(ConfigError, match="expected a session that is open"):
        first.get(x)


def test_threads_of_the_program_may_use_one_session(master: Master) -> None:
    x = everywhere(master, A)
    found: dict[int, bool] = {}

    def use(number: int) -> None:
        for turn in range(5):
            got = computed(master, leaf(x) * float(number) + float(turn))
            found[number] = found.get(number, True) and np.array_equal(got, A * number + turn)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), True)


def test_programs_that_were_not_run_for_long_are_sent_anew(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caldera.dmath.session.MOST_PROGRAMS", 2)
    x = leaf(everywhere(session, A))
    programs = [(x * float(n)).node for n in range(4)]
    for n in (0, 1, 2, 3, 0, 3, 1):
        np.testing.assert_array_equal(session.get(session.run([programs[n]])[0]), A * n)
