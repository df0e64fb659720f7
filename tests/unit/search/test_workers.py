"""Workers: every trial once, whoever runs it and whatever happens to them."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import nn, search
from caldera.base.config import settings
from caldera.comm import Communicator, run_virtual_ranks
from caldera.comm.listener import KEY_BYTES, connect
from caldera.errors import CommError, ConfigError
from caldera.search import workers as search_workers
from caldera.search.job import digest_of
from caldera.search.workers import ranks, worker
from caldera.search.workers.dispatcher import WorkerMessage
from caldera.search.workers.local import share_card
from caldera.search.workers.ranks import RankWorkers
from caldera.search.workers.worker import MessageStream

GRID = {"x": search.integer(0, 23)}


def squared(x: int) -> float:
    time.sleep(0.002)
    return float((x - 5) ** 2)


class StopOdd(search.Method):
    """Ends every second trial after its third step."""

    def stop(self, trial: search.Trial, step: int, loss: float) -> bool:
        return step >= 3 and trial.number % 2 == 1


@pytest.mark.parametrize("workers", [1, 2, 4, 8, "threads:3", "processes:1"])
def test_a_grid_is_visited_once_by_any_number_of_workers(workers: int | str) -> None:
    study = search.run(squared, GRID, method="grid", workers=workers, verbose=0)
    assert sorted(trial.parameters["x"] for trial in study.trials) == list(range(24))
    assert all(trial.state == "done" for trial in study.trials)
    assert study.best.parameters == {"x": 5}


@pytest.mark.parametrize("workers", ["threads:2", 2])
def test_a_decision_to_stop_reaches_a_trial_that_does_not_wait_for_it(workers: int | str) -> None:
    def steps(x: int) -> Iterator[float]:
        for step in range(20_000 if x % 2 else 5):
            time.sleep(0.001)
            yield x + 1 / (step + 1)

    study = search.run(
        steps,
        {"x": search.integer(0, 3)},
        method="grid",
        stop=StopOdd(),
        workers=workers,
        verbose=0,
    )
    assert [trial.state for trial in study.trials] == ["done", "stopped", "done", "stopped"]
    assert [len(trial.curve) for trial in study.trials[::2]] == [5, 5]
    # The decision came while it trained, and not at its end.
    assert all(3 <= len(trial.curve) < 20_000 for trial in study.trials[1::2])
    assert "after step 3" in study.trials[1].reason


class AskedAhead(search.Method):
    """Takes long to propose, as it says."""

    asks_ahead = True

    def __init__(self) -> None:
        self.thrice = threading.Event()

    def ask(self, number: int) -> search.Proposal:
        if number >= 2:
            self.thrice.set()
        return search.Proposal({"x": number})


def test_the_next_trial_is_ready_before_a_worker_is_free() -> None:
    method = AskedAhead()

    def waits(x: int) -> float:
        # Two workers have a trial each, and wait until a third one was asked for.
        return float(method.thrice.wait(30))

    study = search.run(waits, GRID, method=method, trials=4, workers="threads:2", verbose=0)
    assert [trial.value for trial in study.trials] == [1.0] * 4


def test_a_trial_may_raise_leave_or_die_and_the_study_goes_on() -> None:
    def deadly(x: int) -> float:
        if x == 1:
            os._exit(7)
        if x == 2:
            raise ValueError("too large")
        if x == 3:
            sys.exit(3)
        return x

    study = search.run(
        deadly, {"x": search.integer(0, 5)}, method="grid", workers=2, retries=1, verbose=0
    )
    states = [trial.state for trial in study.trials]
    assert states == ["done", "failed", "failed", "failed", "done", "done"]
    assert "begun 2 times" in study.trials[1].reason
    assert "ended with status 7" in study.trials[1].reason
    assert study.trials[2].reason == "ValueError: too large"
    assert study.trials[3].reason == "SystemExit: 3"


@pytest.mark.parametrize("workers", ["threads:2", 2])
def test_a_hung_trial_is_begun_again_elsewhere(workers: int | str, tmp_path: Path) -> None:
    def hangs(x: int) -> float:
        # One of them once, the other always.
        mark = tmp_path / "hung"
        if x == 2 or (x == 1 and not mark.exists()):
            mark.touch()
            time.sleep(60)
        return x

    study = search.run(
        hangs,
        {"x": search.integer(0, 3)},
        method="grid",
        workers=workers,
        retries=1,
        hung_after=0.5,
        verbose=0,
    )
    assert [trial.value for trial in study.trials] == [0, 1, None, 3]
    assert study.trials[2].state == "failed"
    assert "begun 2 times" in study.trials[2].reason
    assert "has not reported for" in study.trials[2].reason


def test_workers_share_the_machine() -> None:
    def threads_of(x: int) -> dict[str, float]:
        return {"value": x, "threads": settings.threads, "place": int(os.environ["CALDERA_WORKER"])}

    with settings.override(threads=9):
        study = search.run(
            threads_of, {"x": search.integer(0, 40)}, method="grid", workers=2, verbose=0
        )
        assert {trial.results["threads"] for trial in study.trials} == {4}
        assert {trial.results["place"] for trial in study.trials} <= {0, 1}
        assert settings.threads == 9


def test_several_workers_of_one_card_limit_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    module = search_workers.local  # type: ignore[attr-defined]

    class Played:
        memory_bytes = 8000

    monkeypatch.setattr(module, "card_count", lambda: 2)
    monkeypatch.setattr(module, "device", lambda: Played)
    with settings.override(memory_limit=None):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        share_card(4)
        assert settings.memory_limit is None
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        share_card(2)
        assert settings.memory_limit is None
        share_card(4)
        assert settings.memory_limit == 3600
    with settings.override(memory_limit=100):
        share_card(4)
        assert settings.memory_limit == 100


@pytest.mark.parametrize("workers", [0, -1, True, "threads", "threads:0", "cards:2", 1.5, "٣"])
def test_what_is_no_number_of_workers_is_refused(workers: int | str) -> None:
    with pytest.raises(ConfigError, match="expected workers as a number"):
        search.run(squared, GRID, method="grid", workers=workers, verbose=0)


def test_ranks_are_asked_for_where_there_are_none() -> None:
    with pytest.raises(ConfigError, match="caldera run -n 5"):
        search.run(squared, GRID, method="grid", ranks_per_trial=2, verbose=0)
    with pytest.raises(ConfigError, match="ranks_per_trial from 1 to 2"):
        ranks.groups_of(3, 3)


def test_a_master_whose_workers_all_die_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(place: int, count: int) -> None:
        os._exit(1)

    monkeypatch.setattr(search_workers.local, "share_machine", fails)  # type: ignore[attr-defined]
    with pytest.raises(CommError, match="died before they ran anything"):
        search.run(squared, GRID, method="grid", workers=2, verbose=0)


# --- ranks, as threads


def run_on_virtual_ranks(count: int, monkeypatch: pytest.MonkeyPatch, **how: object) -> list:  # type: ignore[type-arg]
    """What `search.run` gives on each rank."""
    here = threading.local()
    monkeypatch.setattr(search_workers, "world", lambda: here.communicator)

    def work(communicator: Communicator) -> search.Study:
        here.communicator = communicator
        return search.run(verbose=0, **how)  # type: ignore[arg-type]

    return run_virtual_ranks(count, work)


def test_every_rank_gets_the_study_of_the_master(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: Counter[int] = Counter()

    def counted(x: int) -> float:
        ran[x] += 1
        return squared(x)

    studies = run_on_virtual_ranks(
        4, monkeypatch, build=counted, space=GRID, method="grid", folder=tmp_path
    )
    assert set(ran) == set(range(24))
    assert set(ran.values()) == {1}
    for study in studies:
        assert study.best.parameters == {"x": 5}
        assert [each.value for each in study.trials] == [each.value for each in studies[0].trials]


def test_a_study_that_no_message_can_hold_reaches_every_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "LONGEST", 4000)
    monkeypatch.setattr(ranks, "_TRIALS", 5)
    studies = run_on_virtual_ranks(3, monkeypatch, build=squared, space=GRID, method="grid")
    for study in studies:
        assert [each.parameters["x"] for each in study.trials] == list(range(24))


def test_only_ranks_hear_of_the_study_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes and threads are over then."""
    monkeypatch.setattr(ranks, "encoded", None)
    for workers in (1, "threads:2", "processes:2"):
        study = search.run(squared, GRID, method="grid", workers=workers, verbose=0)
        assert len(study.trials) == 24


def test_two_ranks_train_a_trial_together(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.linspace(-1, 1, 40, dtype="float32")[:, None]

    def build(learning_rate: float) -> cd.Model:
        layers = [nn.Input((1,)), nn.Dense(1)]
        return cd.NeuralNetwork(
            layers, loss="mse", optimizer="sgd", learning_rate=learning_rate, batch_size=10
        )

    how = {
        "build": build,
        "space": {"learning_rate": search.choice([0.01, 0.1, 0.3])},
        "data": (x, 2 * x),
        "method": "grid",
        "epochs": 3,
        "stop": StopOdd(),
    }
    alone = search.run(**how, verbose=0)  # type: ignore[arg-type]
    # A master, two groups of two, and one that is left over.
    together = run_on_virtual_ranks(6, monkeypatch, ranks_per_trial=2, **how)
    for study in together:
        for mine, other in zip(study.trials, alone.trials, strict=True):
            assert mine.value == pytest.approx(other.value, rel=1e-4)
            assert len(mine.curve) == len(other.curve) == 3
            # What was to be stopped after its last epoch is done.
            assert mine.state == other.state == "done"


def test_what_two_ranks_have_trained_is_made_again_by_one_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It adds up as they did: the means of each rank's samples first."""
    random = np.random.default_rng(4)
    x, y = random.normal(size=(60, 12)).astype("float32"), random.integers(0, 3, 60)

    def build(learning_rate: float) -> cd.Model:
        layers = [nn.Input((12,)), nn.Dense(24, activation="tanh"), nn.Dense(3)]
        return cd.NeuralNetwork(layers, learning_rate=learning_rate, batch_size=16)

    studies = run_on_virtual_ranks(
        3,
        monkeypatch,
        ranks_per_trial=2,
        build=build,
        data=(x, y),
        method="grid",
        epochs=2,
        space={"learning_rate": search.choice([0.01, 0.1])},
    )
    for study in studies[::2]:
        for trial in study.trials:
            assert study.record.conditions_of(trial).ranks == 2
            assert digest_of(study.remake(trial)) == trial.digest


def test_a_rank_that_was_given_up_comes_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark = tmp_path / "slow"
    gave_up = threading.Event()
    monkeypatch.setattr(
        RankWorkers,
        "drop",
        lambda self, *given: (drop(self, *given), gave_up.set())[0],
    )

    def slow_once(x: int) -> float:
        if x == 0 and not mark.exists():
            mark.touch()
            assert gave_up.wait(60)
        return x

    studies = run_on_virtual_ranks(
        2,
        monkeypatch,
        build=slow_once,
        space={"x": search.integer(0, 2)},
        method="grid",
        hung_after=0.3,
    )
    assert [trial.value for trial in studies[1].trials] == [0, 1, 2]


drop = RankWorkers.drop


def test_strangers_are_not_let_in() -> None:
    pool = RankWorkers([range(1, 2)], bytes(KEY_BYTES))
    with pool:
        for line in (b"[" * 200_000, b'{"kind": "hello", "word": "\\ud800"}\n' * 9):
            with socket.create_connection(("127.0.0.1", pool.offer["port"])) as stranger:
                stranger.settimeout(0.01)
                ended, until = False, time.monotonic() + 30
                with suppress(OSError):
                    stranger.sendall(line)
                while not ended:
                    assert time.monotonic() < until
                    assert not pool.messages()
                    with suppress(TimeoutError):
                        ended = _is_ended(stranger)
        assert not pool.idle


def _is_ended(stranger: socket.socket) -> bool:
    try:
        got = stranger.recv(1000)
    except ConnectionResetError:
        return True
    # The challenge is all that a stranger gets.
    assert len(got) <= KEY_BYTES
    return not got


def test_a_rank_that_sends_what_nobody_can_read_is_lost_and_no_more() -> None:
    pool = RankWorkers([range(1, 2)], bytes(KEY_BYTES))
    with pool, ThreadPoolExecutor(1) as threads:
        connected = threads.submit(connect, bytes(KEY_BYTES), pool.offer["port"], 1, 0, 30.0)
        until = time.monotonic() + 30
        found: list[WorkerMessage] = []
        while not found:
            assert time.monotonic() < until
            found = pool.messages()
            if connected.done() and not pool.members[0].is_stopping:
                pool.members[0].is_stopping = True
                connected.result().sendall(b'{"kind": "hello"}\n' + b"[" * 200_000 + b"\n")
        assert [each.message["kind"] for each in found] == ["lost"]
        connected.result().close()


def test_messages_are_whole_however_they_come() -> None:
    random = np.random.default_rng(5)
    sent = [{"kind": "word", "word": "ab\n" * int(n)} for n in random.integers(0, 300, 40)]
    line = b"".join(json.dumps(each).encode() + b"\n" for each in sent)
    cuts = np.sort(random.integers(0, len(line), 60)).tolist()
    ours, theirs = socket.socketpair()
    reader, found = MessageStream(ours), []
    for begin, end in zip([0, *cuts], [*cuts, len(line)], strict=True):
        if begin < end:
            theirs.sendall(line[begin:end])
            found += reader.read()
    assert found == sent
    theirs.close()
    reader.close()


def test_what_is_no_message_is_refused() -> None:
    ours, theirs = socket.socketpair()
    reader = MessageStream(ours)
    for line in (b"no json", b"[1]", b'{"kind": 3}'):
        theirs.sendall(line + b"\n")
        with pytest.raises(CommError, match="a JSON object with its kind"):
            reader.read()
    theirs.close()
    assert reader.read() == []
    assert reader.closed
    reader.send({"kind": "beat"})
    reader.close()
