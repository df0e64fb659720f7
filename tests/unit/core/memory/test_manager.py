"""`MemoryManager`: the four kinds, the sides they have, and copies only when a side is stale."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from caldera.core.memory import CUDA_MANAGED, DEVICE, HOST, MANAGED, Kind, MemoryManager, device
from caldera.errors import ConfigError, DeviceError, DtypeError, ShapeError
from tests.transfers import counted_from_now

KINDS = list(Kind)
PLACES = ["cpu", "loopback:0"]


def gated(stream: Any) -> threading.Event:
    gate = threading.Event()
    stream.launch(lambda: gate.wait(20))
    return gate


def launch_fill(memory: MemoryManager, value: float, **options: Any) -> None:
    array = memory.on_device(write=True, **options)
    (options.get("stream") or memory.device.stream).launch(lambda: array.fill(value))


# -- what it is ------------------------------------------------------------------------------------


def test_attributes_and_defaults() -> None:
    memory = MemoryManager(20)
    assert (memory.size, memory.dtype, memory.kind) == (20, np.float32, MANAGED)
    assert (memory.device, memory.nbytes, memory.copies) == (device(), 80, 0)
    assert repr(memory) == "MemoryManager(20, float32, MANAGED, cpu)"
    assert MemoryManager(3, np.int16, device=0).nbytes == 6
    assert MemoryManager(3, "bfloat16").nbytes == 6
    assert MemoryManager(np.int64(3), float).dtype == np.float32


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((-1,), ShapeError, "size >= 0, got -1"),
        ((1.5,), ShapeError, "size >= 0"),
        ((2, "float33"), DtypeError, "dtype of numbers, got 'float33'"),
        ((2, object), DtypeError, "dtype of numbers"),
        ((2, None), DtypeError, "dtype of numbers"),
        ((2, "float32", "MANAGED"), ConfigError, "kind HOST"),
        ((2, "float32", MANAGED, "gpu"), DeviceError, "'gpu'"),
    ],
)
def test_wrong_arguments(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        MemoryManager(*arguments)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_nothing_is_allocated_before_use_and_the_owner_is_known(kind: Kind, place: str) -> None:
    owner = f"{kind.name} on {place}"
    memory = MemoryManager(2000, "float32", kind, place, owner=owner)
    pools = {device("cpu").pool, device(place).pool}
    assert not any(owner in pool.report() for pool in pools)
    memory.set(0, 1)
    memory.sync()
    assert sum(pool.report().get(owner, 0) for pool in pools) == 8192
    del memory
    assert not any(owner in pool.report() for pool in pools)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_get_and_set(kind: Kind, place: str) -> None:
    memory = MemoryManager(5, "int16", kind, place)
    memory.copy_from(np.zeros(5, "int16"))
    memory.set(0, 3)
    memory.set(-1, np.int64(-4))
    assert [memory.get(index) for index in (0, 1, 4, -1, -5)] == [3, 0, -4, -4, 3]
    assert type(memory.get(0)) is int
    for index in (5, -6):
        with pytest.raises(ShapeError, match="index from -5 to 4"):
            memory.get(index)
        with pytest.raises(ShapeError, match="index from -5 to 4"):
            memory.set(index, 0)
    for value in (2**20, "three", [1, 2]):
        with pytest.raises(DtypeError, match="one int16 number"):
            memory.set(0, value)
    assert memory.get(0) == 3


def test_single_numbers_of_device_memory_are_small_transfers() -> None:
    memory = MemoryManager(1000, "float64", DEVICE, "loopback")
    memory.set(7, 2.5)
    counters = counted_from_now(memory.device)
    assert memory.get(7) == 2.5
    memory.set(8, 1.0)
    memory.sync()
    assert (counters.d2h, counters.d2h_bytes) == (1, 8)
    assert (counters.h2d, counters.h2d_bytes) == (1, 8)
    assert memory.copies == 3


def test_empty_memory() -> None:
    for kind in KINDS:
        memory = MemoryManager(0, "float32", kind, "loopback")
        with pytest.raises(ShapeError):
            memory.get(0)
        if kind is not DEVICE:
            assert memory.host(write=True).shape == (0,)


@pytest.mark.parametrize("place", PLACES)
def test_sides_that_a_kind_does_not_have(place: str) -> None:
    host, there = MemoryManager(2, kind=HOST, device=place), MemoryManager(2, "int8", DEVICE, place)
    with pytest.raises(DeviceError, match=r"HOST memory.*copy_from"):
        host.on_device()
    with pytest.raises(DeviceError, match=r"DEVICE memory.*copy_from.*get"):
        there.host()
    with pytest.raises(DeviceError, match="device side"):
        host.prefetch("device")
    with pytest.raises(DeviceError, match="host side"):
        there.prefetch("host")
    with pytest.raises(ConfigError, match="prefetch"):
        there.prefetch("card")  # type: ignore[arg-type]
    host.prefetch("host")
    there.prefetch("device")
    assert (host.copies, there.copies) == (0, 0)


def test_discard_needs_write() -> None:
    memory = MemoryManager(2)
    for access in (memory.host, memory.on_device):
        with pytest.raises(ConfigError, match="write=True"):
            access(discard=True)


def test_where_the_device_is_the_host_both_sides_are_the_same() -> None:
    for kind in (MANAGED, CUDA_MANAGED):
        memory = MemoryManager(4, kind=kind, device="cpu")
        memory.host(write=True)[:] = [1, 2, 3, 4]
        memory.on_device(write=True)[1] = 9
        assert memory.host().tolist() == [1, 9, 3, 4]
        assert memory.host().ctypes.data == memory.on_device().ctypes.data == memory.address
        assert memory.copies == 0


# -- copies only when stale ------------------------------------------------------------------------

ACCESS: dict[str, Callable[[MemoryManager], Any]] = {
    "host read": lambda memory: memory.host(),
    "host write": lambda memory: memory.host(write=True),
    "host discard": lambda memory: memory.host(write=True, discard=True),
    "device read": lambda memory: memory.on_device(),
    "device write": lambda memory: memory.on_device(write=True),
    "device discard": lambda memory: memory.on_device(write=True, discard=True),
    "prefetch host": lambda memory: memory.prefetch("host"),
    "prefetch device": lambda memory: memory.prefetch("device"),
}


def accesses_of(kind: Kind) -> list[str]:
    without = {HOST: "device", DEVICE: "host"}.get(kind, "nothing")
    return [name for name in ACCESS if without not in name]


@pytest.mark.parametrize(
    ("kind", "access"),
    [(kind, access) for kind in KINDS for access in accesses_of(kind)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
@pytest.mark.parametrize("place", PLACES)
def test_repeating_an_access_makes_no_copies(kind: Kind, access: str, place: str) -> None:
    memory = MemoryManager(4, "int32", kind, place)
    memory.copy_from(np.arange(4, dtype="int32"))
    ACCESS[access](memory)
    memory.sync()
    before = memory.copies
    counters = counted_from_now(memory.device)
    for _ in range(3):
        ACCESS[access](memory)
    memory.sync()
    assert memory.copies == before
    assert counters.h2d + counters.d2h + counters.d2d == 0


@pytest.mark.parametrize("access", ACCESS)
def test_memory_that_was_never_written_is_never_copied(access: str) -> None:
    memory = MemoryManager(4, device="loopback")
    ACCESS[access](memory)
    assert memory.copies == 0


@pytest.mark.parametrize(
    ("first", "then", "copies"),
    [
        ("host write", "device read", 1),
        ("host write", "device write", 1),
        ("host write", "device discard", 0),
        ("host write", "prefetch device", 1),
        ("host write", "prefetch host", 0),
        ("host read", "device read", 0),
        ("device write", "host read", 1),
        ("device write", "host write", 1),
        ("device write", "host discard", 0),
        ("device write", "prefetch host", 1),
        ("device read", "host read", 0),
    ],
)
def test_a_stale_side_is_copied_once(first: str, then: str, copies: int) -> None:
    memory = MemoryManager(4, device="loopback")
    ACCESS[first](memory)
    for _ in range(2):
        ACCESS[then](memory)
    assert memory.copies == copies


def test_shared_memory_is_never_copied() -> None:
    memory = MemoryManager(3, "int32", CUDA_MANAGED, "loopback")
    memory.host(write=True)[:] = [1, 2, 3]
    array = memory.on_device(write=True)
    memory.device.stream.launch(lambda: np.multiply(array, 2, out=array))
    assert memory.host().tolist() == [2, 4, 6]
    assert memory.copies == 0
    assert memory.host().ctypes.data == memory.address


# -- asynchronous ----------------------------------------------------------------------------------


def test_prefetch_does_not_wait_and_access_does() -> None:
    memory = MemoryManager(3, "int32", device="loopback")
    memory.host(write=True)[:] = [1, 2, 3]
    here = memory.device
    counted_from_now(here)
    gate = gated(here.copy_stream)
    memory.prefetch("device")
    assert here.counters.h2d == 0
    array = memory.on_device(write=True)
    here.stream.launch(lambda: np.add(array, 10, out=array))
    threading.Timer(0.01, gate.set).start()
    assert memory.host().tolist() == [11, 12, 13]
    assert (here.counters.h2d, here.counters.d2h) == (1, 1)


def test_prefetch_overlaps_with_kernels() -> None:
    """The copy for the next step is made while the kernels of this one are at work."""
    memory = MemoryManager(3, "int32", device="loopback")
    memory.host(write=True)[:] = [1, 2, 3]
    here = memory.device
    counted_from_now(here)
    gate = gated(here.stream)
    memory.prefetch("device")
    here.copy_stream.synchronize()
    assert here.counters.h2d == 1
    gate.set()


def test_prefetch_waits_for_the_kernels_that_write_the_memory() -> None:
    memory = MemoryManager(3, "int32", device="loopback")
    gate = gated(memory.device.stream)
    launch_fill(memory, 5)
    memory.prefetch("host")
    gate.set()
    assert memory.host().tolist() == [5, 5, 5]
    assert memory.copies == 1


def test_host_write_waits_for_a_prefetch_that_still_reads() -> None:
    memory = MemoryManager(1, "int32", device="loopback")
    memory.host(write=True)[0] = 1
    gate = gated(memory.device.copy_stream)
    memory.prefetch("device")
    array = memory.on_device()
    seen: list[int] = []
    memory.device.stream.launch(lambda: seen.append(int(array[0])))
    threading.Timer(0.02, gate.set).start()
    memory.host(write=True, discard=True)[0] = 2
    memory.sync()
    assert seen == [1]


def test_device_write_waits_for_a_prefetch_that_still_reads() -> None:
    memory = MemoryManager(1, "int32", device="loopback")
    launch_fill(memory, 1)
    memory.sync()
    gate = gated(memory.device.copy_stream)
    memory.prefetch("host")
    host = memory._host_array()
    launch_fill(memory, 2)
    threading.Timer(0.02, gate.set).start()
    memory.device.stream.synchronize()
    assert host[0] == 1
    assert memory.host()[0] == 2


@pytest.mark.parametrize("kind", [MANAGED, DEVICE, CUDA_MANAGED], ids=lambda kind: kind.name)
def test_host_access_waits_for_pending_kernels(kind: Kind) -> None:
    memory = MemoryManager(2, "int32", kind, "loopback")
    gate = gated(memory.device.stream)
    launch_fill(memory, 7)
    threading.Timer(0.01, gate.set).start()
    assert memory.get(1) == 7


def test_streams_take_over_from_each_other() -> None:
    memory = MemoryManager(2, "int32", device="loopback")
    first, second = memory.device.new_stream(), memory.device.new_stream()
    gate = gated(first)
    launch_fill(memory, 1, stream=first)
    array = memory.on_device(write=True, stream=second)
    second.launch(lambda: np.add(array, 1, out=array))
    gate.set()
    assert memory.host().tolist() == [2, 2]


def test_copies_on_one_device_do_not_wait() -> None:
    source = MemoryManager(2, "int32", DEVICE, "loopback")
    target = MemoryManager(2, "int32", DEVICE, "loopback")
    source.copy_from(np.array([1, 2], "int32"))
    gate = gated(source.device.stream)
    target.copy_from(source)
    launch_fill(source, 0)
    threading.Timer(0.01, gate.set).start()
    assert [target.get(0), target.get(1)] == [1, 2]
    assert source.get(0) == 0


def test_sync_raises_what_a_kernel_did() -> None:
    memory = MemoryManager(2, device="loopback")
    memory.on_device(write=True)
    memory.device.stream.launch(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        memory.sync()


@pytest.mark.parametrize("ahead", [False, True])
def test_memory_survives_a_kernel_that_failed(ahead: bool) -> None:
    memory = MemoryManager(2, "int32", device="loopback")
    launch_fill(memory, 3)
    memory.sync()
    memory.on_device(write=True)
    memory.device.stream.launch(lambda: 1 // 0)
    if ahead:
        memory.prefetch("host")
    with pytest.raises(ZeroDivisionError):
        memory.host()
    if ahead:
        # The copy stream has told; the stream of the kernel itself has not yet.
        with pytest.raises(ZeroDivisionError):
            memory.device.stream.synchronize()
    assert memory.host().tolist() == [3, 3]


# -- arrays that exist already ---------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_adopted_array_is_the_host_side(place: str) -> None:
    grid = np.arange(6, dtype="int32").reshape(2, 3)
    memory = MemoryManager.adopt(grid, device=place)
    assert memory.size == 6
    launch_fill(memory, 4)
    memory.host(write=True)[5] = 8
    assert grid.tolist() == [[4, 4, 4], [4, 4, 8]]
    assert memory.copies == (0 if place == "cpu" else 2)
    if place == "cpu":
        assert memory.address == grid.ctypes.data


def test_adopted_array_that_is_read_only() -> None:
    numbers = np.arange(3)
    numbers.flags.writeable = False
    memory = MemoryManager.adopt(numbers)
    assert memory.get(2) == 2
    for access in (memory.host, memory.on_device):
        with pytest.raises(DeviceError, match=r"read-only.*copy_from"):
            access(write=True)


def test_arrays_that_cannot_be_adopted() -> None:
    with pytest.raises(ShapeError, match=r"contiguous.*ascontiguousarray"):
        MemoryManager.adopt(np.arange(8)[::2])
    for kind in (DEVICE, CUDA_MANAGED):
        with pytest.raises(DeviceError, match="HOST or MANAGED"):
            MemoryManager.adopt(np.zeros(3), kind, "loopback")
