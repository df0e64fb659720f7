"""Random sequences of accesses against plain arrays and a model of which side is stale."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from caldera.core.memory import DEVICE, HOST, MANAGED, Kind, MemoryManager, device

SIZE = 6
WHERE = ["cpu", "loopback:0", "loopback:1"]
WHICH = st.integers(0, 1)


class StaleSides(RuleBasedStateMachine):
    """One MANAGED memory: copies happen exactly when a side that is read is stale."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryManager(SIZE, "int64", MANAGED, "loopback:0")
        self.stale: str | None = None
        self.copies = 0

    def fetch(self, side: str) -> None:
        if self.stale == side:
            self.copies += 1
            self.stale = None

    @rule(side=st.sampled_from(["host", "device"]), discard=st.booleans(), write=st.booleans())
    def access(self, side: str, write: bool, discard: bool) -> None:
        discard = discard and write
        method = self.memory.host if side == "host" else self.memory.on_device
        method(write=write, discard=discard)
        if not discard:
            self.fetch(side)
        if write:
            self.stale = "device" if side == "host" else "host"

    @rule(side=st.sampled_from(["host", "device"]))
    def prefetch(self, side: Any) -> None:
        self.memory.prefetch(side)
        self.fetch(side)

    @rule()
    def sync(self) -> None:
        self.memory.sync()

    @invariant()
    def copies_are_as_expected(self) -> None:
        assert self.memory.copies == self.copies


class TwoMemories(RuleBasedStateMachine):
    """Two memories of any kind on any device hold what two plain arrays hold."""

    @initialize(
        kinds=st.tuples(st.sampled_from(list(Kind)), st.sampled_from(list(Kind))),
        places=st.tuples(st.sampled_from(WHERE), st.sampled_from(WHERE)),
    )
    def make(self, kinds: tuple[Kind, Kind], places: tuple[str, str]) -> None:
        self.memories = [
            MemoryManager(SIZE, "int64", kind, place)
            for kind, place in zip(kinds, places, strict=True)
        ]
        self.models = [np.arange(SIZE), np.arange(SIZE) * 10]
        self.streams = {
            place: [device(place).stream, device(place).new_stream()] for place in WHERE
        }
        for memory, model in zip(self.memories, self.models, strict=True):
            memory.copy_from(model)

    @rule(which=WHICH, index=st.integers(-SIZE, SIZE - 1), value=st.integers(-99, 99))
    def set(self, which: int, index: int, value: int) -> None:
        self.memories[which].set(index, value)
        self.models[which][index] = value

    @rule(which=WHICH, index=st.integers(-SIZE, SIZE - 1))
    def get(self, which: int, index: int) -> None:
        assert self.memories[which].get(index) == self.models[which][index]

    @rule(which=WHICH, index=st.integers(0, SIZE - 1), value=st.integers(-99, 99))
    def write_on_host(self, which: int, index: int, value: int) -> None:
        if self.memories[which].kind is not DEVICE:
            self.memories[which].host(write=True)[index:] = value
            self.models[which][index:] = value

    @rule(which=WHICH, value=st.integers(-99, 99))
    def overwrite_on_host(self, which: int, value: int) -> None:
        if self.memories[which].kind is not DEVICE:
            self.memories[which].host(write=True, discard=True)[:] = value
            self.models[which][:] = value

    @rule(which=WHICH, start=st.integers(0, SIZE - 1), stream=WHICH)
    def add_on_device(self, which: int, start: int, stream: int) -> None:
        memory = self.memories[which]
        if memory.kind is not HOST:
            chosen = self.streams[memory.device.name][stream]
            part = memory.on_device(write=True, stream=chosen)[start:]
            chosen.launch(lambda: np.add(part, 1, out=part))
            self.models[which][start:] += 1

    @rule(which=WHICH, value=st.integers(-99, 99), stream=WHICH)
    def overwrite_on_device(self, which: int, value: int, stream: int) -> None:
        memory = self.memories[which]
        if memory.kind is not HOST:
            chosen = self.streams[memory.device.name][stream]
            array = memory.on_device(write=True, discard=True, stream=chosen)
            chosen.launch(lambda: array.fill(value))
            self.models[which][:] = value

    @rule(which=WHICH, to=st.sampled_from(["host", "device"]))
    def prefetch(self, which: int, to: Any) -> None:
        if self.memories[which].kind not in (HOST, DEVICE):
            self.memories[which].prefetch(to)

    @rule(to=WHICH, source=WHICH, ends=st.tuples(*[st.integers(0, SIZE)] * 3))
    def copy(self, to: int, source: int, ends: tuple[int, int, int]) -> None:
        source_offset, offset, count = ends
        count = min(count, SIZE - max(source_offset, offset))
        self.memories[to].copy_from(self.memories[source], count, offset, source_offset)
        given = self.models[source][source_offset : source_offset + count].copy()
        self.models[to][offset : offset + count] = given

    @rule(which=WHICH)
    def read_everything(self, which: int) -> None:
        everything = MemoryManager(SIZE, "int64", HOST, "cpu")
        everything.copy_from(self.memories[which])
        np.testing.assert_array_equal(everything.host(), self.models[which])

    def teardown(self) -> None:
        for which in range(len(getattr(self, "memories", ()))):
            self.read_everything(which)


_FEW = hypothesis_settings(max_examples=60, stateful_step_count=25, deadline=None)
TestStaleSides = StaleSides.TestCase
TestStaleSides.settings = _FEW
TestTwoMemories = TwoMemories.TestCase
TestTwoMemories.settings = _FEW
