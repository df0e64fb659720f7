"""CuPy and NCCL as far as communicators use them, played by the host: a buffer "on the card" is a
`DeviceArray` over host memory, so that only what goes through the runtime can touch it."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import ml_dtypes
import numpy as np
import pytest

from caldera.comm import nccl as nccl_module
from caldera.comm import point_to_point
from caldera.core.memory import gpus
from caldera.core.memory.software import DeviceArray


def on_card(values: np.ndarray) -> DeviceArray:
    """A copy that the host may not touch."""
    return np.array(values).view(DeviceArray)


def seen_from_card(there: DeviceArray) -> np.ndarray:
    """What a buffer on the card holds."""
    return there.view(np.ndarray)


# --- CuPy


class _Scope:
    """A device or a stream: something to be inside of."""

    ptr, id = 77, 0

    def __init__(self, *_: object, **__: object) -> None:
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return

    def synchronize(self) -> None:
        return

    def wait_event(self, event: object) -> None:
        return


class _Event:
    done = True
    ptr = 78

    def __init__(self, **_: object) -> None:
        return

    def record(self, stream: object) -> None:
        return

    def synchronize(self) -> None:
        return


class _Array(np.ndarray[Any, np.dtype[Any]]):
    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.__array_interface__["data"][0])


class Runtime:
    """Counts what is copied, and how often somebody waits."""

    memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice = "h2d", "d2h", "d2d"

    def __init__(self) -> None:
        self.copied: list[tuple[str, int]] = []
        self.waits = 0

    def memcpyAsync(self, to: int, given: int, nbytes: int, kind: str, stream: int) -> None:
        ctypes.memmove(to, given, nbytes)
        self.copied.append((kind, nbytes))

    def streamSynchronize(self, stream: int) -> None:
        self.waits += 1

    def deviceSynchronize(self) -> None:
        self.waits += 1

    def pointerGetAttributes(self, address: int) -> Any:
        return SimpleNamespace(device=0)

    def getDeviceProperties(self, card: int) -> dict[str, Any]:
        return {"uuid": bytes([card]) * 16}


def fake_cupy(runtime: Runtime) -> Any:
    cuda = SimpleNamespace(
        runtime=runtime,
        Device=_Scope,
        Stream=_Scope,
        ExternalStream=_Scope,
        Event=_Event,
        alloc_pinned_memory=bytearray,
    )
    return SimpleNamespace(
        cuda=cuda,
        empty=lambda shape, dtype: np.empty(shape, dtype).view(_Array),
        zeros=lambda shape, dtype: np.zeros(shape, dtype).view(_Array),
        where=lambda *given: np.where(*given).view(_Array),
        isnan=np.isnan,
    )


# --- NCCL

_NUMPY = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
_names = itertools.count()
_in_group = threading.local()


def _memory(address: int, count: int, dtype: int) -> np.ndarray:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == 9 else _NUMPY[dtype])
    if not count:
        return np.empty(0, kind)
    raw = (ctypes.c_char * (count * kind.itemsize)).from_address(address)
    return np.frombuffer(raw, kind)


class _Room:
    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.given: list[Any] = [None] * size
        self.messages: dict[tuple[int, int], deque[bytes]] = {
            (a, b): deque() for a in range(size) for b in range(size)
        }


_rooms: dict[tuple[int, ...], _Room] = {}
_lock = threading.Lock()


class FakeNccl:
    """`cupy.cuda.nccl`: each collective reads everybody's memory between two barriers."""

    def get_version(self) -> int:
        return 22703

    def get_unique_id(self) -> tuple[int, ...]:
        return (next(_names), *([-1] * 127))

    def groupStart(self) -> None:
        _in_group.calls = []

    def groupEnd(self) -> None:
        calls: list[tuple[int, Callable[[], None]]] = _in_group.calls
        _in_group.calls = None
        # All sends of a group have begun before its first receive waits.
        for _, call in sorted(calls, key=lambda pair: pair[0]):
            call()

    class NcclCommunicator:
        def __init__(self, size: int, name: tuple[int, ...], rank: int) -> None:
            assert len(name) == 128
            with _lock:
                self._room = _rooms.setdefault(name, _Room(size))
            self._rank, self._size = rank, size

        def _start(self, call: Callable[[], None], order: int = 1) -> None:
            if getattr(_in_group, "calls", None) is None:
                call()
            else:
                _in_group.calls.append((order, call))

        def _everybody(self, mine: np.ndarray) -> list[np.ndarray]:
            self._room.given[self._rank] = mine.copy()
            self._room.barrier.wait(30)
            found = list(self._room.given)
            self._room.barrier.wait(30)
            return found

        def _reduced(self, mine: np.ndarray, op: int) -> np.ndarray:
            parts = self._everybody(mine)
            function = {0: np.add, 2: np.maximum, 3: np.minimum, 4: np.add}[op]
            total = parts[0]
            for part in parts[1:]:
                total = function(total, part)
            return total / self._size if op == 4 else total

        def allReduce(self, at: int, to: int, count: int, dtype: int, op: int, stream: int) -> None:
            _memory(to, count, dtype)[:] = self._reduced(_memory(at, count, dtype), op)

        def reduce(
            self, at: int, to: int, count: int, dtype: int, op: int, root: int, stream: int
        ) -> None:
            def call() -> None:
                total = self._reduced(_memory(at, count, dtype), op)
                if self._rank == root:
                    _memory(to, count, dtype)[:] = total

            self._start(call)

        def broadcast(
            self, at: int, to: int, count: int, dtype: int, root: int, stream: int
        ) -> None:
            self._start(
                lambda: _memory(to, count, dtype).__setitem__(
                    slice(None), self._everybody(_memory(at, count, dtype))[root]
                )
            )

        def reduceScatter(
            self, at: int, to: int, count: int, dtype: int, op: int, stream: int
        ) -> None:
            total = self._reduced(_memory(at, count * self._size, dtype), op)
            _memory(to, count, dtype)[:] = total[self._rank * count :][:count]

        def allGather(self, at: int, to: int, count: int, dtype: int, stream: int) -> None:
            parts = self._everybody(_memory(at, count, dtype))
            _memory(to, count * self._size, dtype)[:] = np.concatenate(parts)

        def send(self, at: int, count: int, dtype: int, peer: int, stream: int) -> None:
            box = self._room.messages[self._rank, peer]
            self._start(lambda: box.append(_memory(at, count, dtype).tobytes()), order=0)

        def recv(self, to: int, count: int, dtype: int, peer: int, stream: int) -> None:
            def call() -> None:
                box = self._room.messages[peer, self._rank]
                while not box:
                    threading.Event().wait(1e-3)
                here = _memory(to, count, dtype)
                here[:] = np.frombuffer(box.popleft(), here.dtype)

            self._start(call)


@pytest.fixture
def fake_card(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """A card for the communicators of one test."""
    runtime = Runtime()
    fake = fake_cupy(runtime)
    for module in (point_to_point, nccl_module, gpus):
        monkeypatch.setattr(module, "cupy", lambda: fake)
    monkeypatch.setattr(nccl_module, "nccl", FakeNccl)
    return runtime
