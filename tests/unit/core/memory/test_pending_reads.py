"""Reading without waiting, and counting those who wait."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from caldera.base.config import settings
from caldera.core.memory import DEVICE, HOST, MANAGED, MemoryManager, device
from tests.transfers import counted_from_now

APART = "loopback:7"


def filled(kind: Any, value: float = 1.0) -> MemoryManager:
    memory = MemoryManager(3, "float64", kind, APART)
    memory.copy_from(np.full(3, value))
    return memory


def held(stream: Any) -> threading.Event:
    gate = threading.Event()
    stream.launch(lambda: gate.wait(20))
    return gate


@pytest.mark.parametrize("kind", [DEVICE, MANAGED])
def test_a_reading_has_the_numbers_of_its_moment(kind: Any) -> None:
    memory = filled(kind)
    stream = memory.device.stream
    gate = held(stream)
    waits = memory.device.counters.waits
    readings = []
    for value in (2.0, 3.0, 4.0):
        numbers = memory.on_device(write=True)
        stream.launch(lambda numbers=numbers, value=value: numbers.fill(value))
        readings.append(memory.begin_read())
    assert not any(reading.done() for reading in readings)
    assert memory.device.counters.waits == waits
    gate.set()
    assert [reading.numbers().tolist() for reading in readings] == [[2.0] * 3, [3.0] * 3, [4.0] * 3]
    assert readings[0].numbers().tolist() == [2.0] * 3


def test_numbers_on_the_host_are_there_at_once() -> None:
    for memory in (filled(HOST), filled(MANAGED), MemoryManager.adopt(np.ones(3), device="cpu")):
        reading = memory.begin_read()
        assert reading.done()
        memory.set(0, 5.0)
        assert reading.numbers().tolist() == [1.0] * 3


def test_a_reading_raises_what_went_wrong_before_it() -> None:
    memory = filled(DEVICE)
    memory.device.stream.launch(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        memory.begin_read().numbers()
    assert memory.begin_read().numbers().tolist() == [1.0] * 3


@pytest.mark.parametrize("name", ["cpu", APART])
def test_waits_are_counted(name: str) -> None:
    here = device(name)
    counted_from_now(here)
    here.stream.synchronize()
    event = here.stream.record()
    event.synchronize()
    assert here.counters.waits == 2
    # What is known to be done is not waited for.
    event.settle()
    here.stream.launch(lambda: None)
    assert here.counters.waits == 2
    here.counters.reset()
    assert here.counters.waits == 0
    assert repr(here.counters).endswith("waits=0)")


def test_settling_waits_if_there_is_something_to_wait_for() -> None:
    here = device(APART)
    counted_from_now(here)
    gate = held(here.stream)
    event = here.stream.record()
    threading.Timer(0.05, gate.set).start()
    event.settle()
    assert gate.is_set()
    assert here.counters.waits == 1


def test_a_device_knows_when_somebody_was_at_its_memory() -> None:
    memory = filled(MANAGED)
    here = memory.device
    memory.on_device(write=True)
    for touch in (
        lambda: memory.host(),
        lambda: memory.host(write=True),
        lambda: memory.set(0, 1.0),
        lambda: memory.on_device(stream=here.new_stream()),
    ):
        memory.on_device(write=True)
        before = here.touched
        memory.on_device(write=True)
        memory.begin_read()
        assert here.touched is before
        touch()
        assert here.touched is not before


def test_memory_of_a_device() -> None:
    assert device(APART).memory_bytes is None
    with settings.override(memory_limit=1000):
        assert device(APART).memory_bytes == 1000
