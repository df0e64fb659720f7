"""Devices by name and number; streams, events, capture and replay on each of them."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np
import pytest

from caldera.base.config import settings
from caldera.core.memory import Device, MemoryManager, device, devices, gpus, memory_report
from caldera.core.memory.gpus import card_count
from caldera.errors import DeviceError
from tests.transfers import counted_from_now

BYTE = np.dtype(np.uint8)
NAMES = ["cpu", "loopback:0"]
without_card = pytest.mark.skipif(card_count() > 0, reason="there is a card")


def gated(stream: Any) -> threading.Event:
    """Hold a stream back until the event that is returned is set."""
    gate = threading.Event()
    stream.launch(lambda: gate.wait(20))
    return gate


# -- names and numbers -----------------------------------------------------------------------------


def test_default_is_the_cpu() -> None:
    for spec in (None, 0, "cpu"):
        found = device(spec)
        assert (found.name, found.kind, found.index) == ("cpu", "cpu", 0)
    assert device("cpu").is_host
    assert device("cpu").kernels == "cpu"


def test_devices_are_made_once() -> None:
    first = device("loopback:1")
    assert device("loopback:1") is first
    assert device(first) is first
    assert device("loopback") is device("loopback:0")
    assert device("loopback:1") is not device("loopback:0")
    assert (first.index, first.is_host, first.kernels) == (1, False, "cpu")


def test_numbers_follow_the_accelerator() -> None:
    with settings.override(accelerator="loopback"):
        assert device(None) is device("loopback:0")
        assert device(2) is device("loopback:2")
    with settings.override(accelerator="cpu"):
        assert device(0) is device("cpu")


def test_ranks_on_a_machine_take_cards_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    monkeypatch.setattr(devices, "_devices", {})
    monkeypatch.setattr(devices, "_makers", {"cuda": lambda index: index})
    monkeypatch.setattr(devices, "card_count", lambda: 2)
    monkeypatch.setattr(gpus, "card_count", lambda: 2)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    for rank in range(4):
        monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", str(rank))
        gpus.own_card.cache_clear()
        found += [device(spec) for spec in (None, "cuda", 0, "cuda:0")]
    gpus.own_card.cache_clear()
    assert found == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (1, r'device 0.*use "loopback:1" to test placement'),
        (-1, "device 0"),
        pytest.param("cuda:0", r"NVIDIA GPU.*pip install 'caldera\[cuda\]'", marks=without_card),
        pytest.param("cuda", r"pip install 'caldera\[cuda\]'", marks=without_card),
        ("loopbak", "did you mean 'loopback'"),
        ("loopback:x", "expected"),
        ("loopback:", "expected"),
        ("loopback:-1", "expected"),
        ("cpu:1", "expected"),
        ("", "expected"),
        (True, "expected a name"),
        (1.5, "expected a name"),
    ],
)
def test_devices_that_do_not_exist(spec: Any, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        device(spec)


@without_card
def test_cuda_as_accelerator_says_what_to_install() -> None:
    with settings.override(accelerator="cuda"), pytest.raises(DeviceError, match="pip install"):
        device(0)


def test_report_names_devices_and_owners() -> None:
    held = device("loopback:77").allocate(4096, owner="report test")
    lines = memory_report().splitlines()
    assert lines[0].split() == ["memory", "in", "use", "cached", "peak", "capacity"]
    assert any(line.startswith("cpu ") for line in lines)
    at = next(index for index, line in enumerate(lines) if line.startswith("loopback:77"))
    assert lines[at].split()[1:] == ["4.0", "KiB", "0", "B", "4.0", "KiB", "system"]
    assert lines[at + 1].split() == ["report", "test", "4.0", "KiB"]
    assert held.nbytes == 4096


# -- copies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_copies_move_bytes_and_are_counted(name: str) -> None:
    here = device(name)
    first, second = here.allocate(16), here.allocate(16)
    given, back = np.arange(4, dtype="int32"), np.zeros(2, "int32")
    counted_from_now(here)
    here.copy_in(first, 0, given, here.stream)
    here.copy_within(second, 0, first, 8, 8, here.stream)
    here.copy_out(back, second, 0, 8, here.stream)
    here.stream.synchronize()
    assert back.tolist() == [2, 3]
    counters = here.counters
    assert (counters.h2d, counters.d2d, counters.d2h) == (1, 1, 1)
    assert (counters.h2d_bytes, counters.d2d_bytes, counters.d2h_bytes) == (16, 8, 8)
    counters.reset()
    assert counters.h2d == counters.h2d_bytes == 0


@pytest.mark.parametrize("name", NAMES)
def test_copies_inside_a_block_may_overlap(name: str) -> None:
    here = device(name)
    block, back = here.allocate(8), np.zeros(8, np.uint8)
    here.copy_in(block, 0, np.arange(8, dtype=np.uint8), here.stream)
    here.copy_within(block, 2, block, 0, 6, here.stream)
    here.copy_out(back, block, 0, 8, here.stream)
    here.stream.synchronize()
    assert back.tolist() == [0, 1, 0, 1, 2, 3, 4, 5]


def test_strided_arrays_are_refused() -> None:
    here = device("loopback")
    with pytest.raises(DeviceError, match=r"contiguous.*ascontiguousarray"):
        here.copy_in(here.allocate(16), 0, np.arange(8)[::2], here.stream)


def test_loopback_memory_is_not_the_hosts() -> None:
    """What was not copied in does not look like zeros, so a missing copy shows."""
    here = device("loopback:4")
    fresh = here.array(here.allocate(64), 0, (16,), np.dtype(np.float32))
    assert np.isnan(fresh).all()


# -- streams ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_work_runs_in_order(name: str) -> None:
    stream = device(name).new_stream()
    seen: list[int] = []
    for number in range(100):
        stream.launch(lambda number=number: seen.append(number))
    stream.synchronize()
    assert seen == list(range(100))


def test_loopback_launch_does_not_wait() -> None:
    stream = device("loopback").new_stream()
    gate = gated(stream)
    seen: list[int] = []
    stream.launch(lambda: seen.append(1))
    event = stream.record()
    assert (seen, event.done()) == ([], False)
    gate.set()
    event.synchronize()
    assert (seen, event.done()) == ([1], True)


def test_streams_run_beside_each_other_unless_told_to_wait() -> None:
    first, second = device("loopback").new_stream(), device("loopback").new_stream()
    gate = gated(first)
    seen: list[str] = []
    first.launch(lambda: seen.append("first"))
    done = first.record()
    second.launch(lambda: seen.append("beside"))
    second.synchronize()
    assert seen == ["beside"]
    second.wait(done)
    second.launch(lambda: seen.append("after"))
    gate.set()
    second.synchronize()
    assert seen == ["beside", "first", "after"]


def test_streams_wait_for_events_of_other_kinds_of_device() -> None:
    stream = device("loopback").new_stream()
    stream.wait(device("cpu").stream.record())
    stream.synchronize()
    gate = gated(stream)
    event = stream.record()
    threading.Timer(0.01, gate.set).start()
    device("cpu").new_stream().wait(event)
    assert event.done()


def test_cpu_errors_are_raised_at_once() -> None:
    with pytest.raises(ZeroDivisionError):
        device("cpu").stream.launch(lambda: 1 // 0)


def test_loopback_errors_surface_once_at_the_next_synchronize() -> None:
    stream = device("loopback").new_stream()
    seen: list[int] = []
    stream.launch(lambda: 1 // 0)
    stream.launch(lambda: seen.append(1))
    with pytest.raises(ZeroDivisionError):
        stream.synchronize()
    assert seen == []
    stream.synchronize()
    stream.launch(lambda: seen.append(2))
    stream.synchronize()
    assert seen == [2]


def test_errors_surface_at_events_and_reach_streams_that_wait() -> None:
    first, second = device("loopback").new_stream(), device("loopback").new_stream()
    before = first.record()
    first.launch(lambda: 1 // 0)
    after = first.record()
    second.wait(after)
    seen: list[int] = []
    second.launch(lambda: seen.append(1))
    before.synchronize()
    with pytest.raises(ZeroDivisionError):
        after.synchronize()
    with pytest.raises(ZeroDivisionError):
        second.synchronize()
    assert seen == []
    first.synchronize()


def test_waiting_for_the_own_stream_is_refused() -> None:
    stream = device("loopback").new_stream()
    stream.launch(stream.synchronize)
    with pytest.raises(DeviceError, match="wait for its own end"):
        stream.synchronize()


def test_idle_stream_keeps_nothing_alive() -> None:
    stream = device("loopback").new_stream()
    array = np.zeros(3)
    freed = threading.Event()
    weakref.finalize(array, freed.set)
    stream.launch(lambda array=array: array.fill(1))
    del array
    # Nothing follows in the queue that could push the call out of the thread's hands.
    assert freed.wait(20)


def test_thread_of_a_dropped_stream_ends() -> None:
    stream = device("loopback").new_stream()
    threads: list[threading.Thread] = []
    stream.launch(lambda: threads.append(threading.current_thread()))
    stream.synchronize()
    del stream
    threads[0].join(timeout=20)
    assert not threads[0].is_alive()


def test_pending_work_keeps_its_block_leased() -> None:
    here = device("loopback:5")
    gate = gated(here.stream)
    block = here.allocate(4096)
    here.copy_in(block, 0, np.zeros(4096, np.uint8), here.stream)
    del block
    assert here.pool.in_use == 4096
    gate.set()
    here.stream.synchronize()
    assert here.pool.in_use == 0


# -- capture ---------------------------------------------------------------------------------------


def captured_increment(here: Device, block: Any) -> Any:
    numbers = here.array(block, 0, (4,), BYTE)
    here.stream.begin_capture()
    try:
        here.stream.launch(lambda: np.add(numbers, 1, out=numbers))
        here.copy_within(block, 1, block, 0, 1, here.stream)
    finally:
        graph = here.stream.end_capture()
    return graph


@pytest.mark.parametrize("name", NAMES)
def test_captured_work_runs_only_when_replayed(name: str) -> None:
    here = device(name)
    block, back = here.allocate(4), np.zeros(4, np.uint8)
    here.copy_in(block, 0, np.array([0, 10, 20, 30], np.uint8), here.stream)
    counted_from_now(here)
    graph = captured_increment(here, block)
    here.copy_out(back, block, 0, 4, here.stream)
    here.stream.synchronize()
    assert back.tolist() == [0, 10, 20, 30]
    assert here.counters.d2d == 0
    for _ in range(3):
        graph.replay()
    here.copy_out(back, block, 0, 4, here.stream)
    here.stream.synchronize()
    assert back.tolist() == [3, 3, 23, 33]
    assert here.counters.d2d == 3


def test_replay_does_not_wait() -> None:
    stream = device("loopback").new_stream()
    seen: list[int] = []
    stream.begin_capture()
    stream.launch(lambda: seen.append(1))
    graph = stream.end_capture()
    gate = gated(stream)
    graph.replay()
    assert seen == []
    gate.set()
    stream.synchronize()
    assert seen == [1]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_may_wait_during_a_capture(name: str) -> None:
    stream = device(name).new_stream()
    event = stream.record()
    stream.begin_capture()
    assert stream.capturing
    waits = (stream.synchronize, stream.record, stream.begin_capture, lambda: stream.wait(event))
    for call in waits:
        with pytest.raises(DeviceError, match=r"capture in progress.*end_capture"):
            call()
    stream.end_capture()
    assert not stream.capturing
    stream.synchronize()
    with pytest.raises(DeviceError, match="begin_capture first"):
        stream.end_capture()


def test_memory_is_not_moved_during_a_capture() -> None:
    memory = MemoryManager(4, device="loopback")
    memory.host(write=True)[:] = 1
    stream = memory.device.new_stream()
    stream.begin_capture()
    try:
        with pytest.raises(DeviceError, match=r"during a capture.*prefetch"):
            memory.on_device(stream=stream)
    finally:
        graph = stream.end_capture()
    graph.replay()
    stream.synchronize()
    assert memory.copies == 0
    memory.on_device(stream=stream)
    memory.sync()
    assert memory.copies == 1


def test_capture_over_memory_that_is_in_place() -> None:
    memory = MemoryManager(3, "int64", device="loopback")
    memory.host(write=True)[:] = [1, 2, 3]
    memory.prefetch("device")
    memory.sync()
    stream = memory.device.stream
    stream.begin_capture()
    numbers = memory.on_device(write=True)
    stream.launch(lambda: np.multiply(numbers, 10, out=numbers))
    graph = stream.end_capture()
    for _ in range(2):
        memory.on_device(write=True)
        graph.replay()
    assert memory.host().tolist() == [100, 200, 300]
