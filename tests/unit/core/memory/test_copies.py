"""`copy_from` between every pair of kinds, on one device and between devices, with its cost."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from caldera.core.memory import CUDA_MANAGED, DEVICE, HOST, MANAGED, Kind, MemoryManager, device
from caldera.core.memory.coherence import MemorySide, cheapest_path
from caldera.errors import DtypeError, ShapeError
from tests.transfers import counted_from_now

KINDS = list(Kind)
PLACES = [("cpu", "cpu"), ("loopback:0", "loopback:0"), ("loopback:0", "loopback:1")]
NOTHING = (0, 0, 0)

# (h2d, d2h, d2d) on the source's device, then on the target's, for a source the host has written.
ON_ONE_DEVICE = {
    (HOST, DEVICE): (1, 0, 0),
    (MANAGED, DEVICE): (1, 0, 0),
    (DEVICE, HOST): (0, 1, 0),
    (DEVICE, DEVICE): (0, 0, 1),
    (DEVICE, MANAGED): (0, 0, 1),
    (DEVICE, CUDA_MANAGED): (0, 0, 1),
    (CUDA_MANAGED, DEVICE): (0, 0, 1),
    (CUDA_MANAGED, MANAGED): (0, 0, 1),
    (CUDA_MANAGED, CUDA_MANAGED): (0, 0, 1),
}
BETWEEN_DEVICES = {
    (HOST, DEVICE): (NOTHING, (1, 0, 0)),
    (MANAGED, DEVICE): (NOTHING, (1, 0, 0)),
    (CUDA_MANAGED, DEVICE): (NOTHING, (1, 0, 0)),
    (DEVICE, HOST): ((0, 1, 0), NOTHING),
    (DEVICE, MANAGED): ((0, 1, 0), NOTHING),
    (DEVICE, CUDA_MANAGED): ((0, 1, 0), NOTHING),
    (DEVICE, DEVICE): ((0, 1, 0), (1, 0, 0)),
}


def made(kind: Kind, place: str, values: list[int]) -> MemoryManager:
    memory = MemoryManager(len(values), "int32", kind, place)
    memory.copy_from(np.array(values, "int32"))
    return memory


def numbers(memory: MemoryManager) -> list[int]:
    everything = MemoryManager(memory.size, memory.dtype, HOST, "cpu")
    everything.copy_from(memory)
    return everything.host().tolist()


def transfers(place: str) -> tuple[int, int, int]:
    device(place).stream.synchronize()
    counters = device(place).counters
    return counters.h2d, counters.d2h, counters.d2d


def reset(*places: str) -> None:
    for place in places:
        counted_from_now(device(place))


@pytest.mark.parametrize("places", PLACES, ids=" to ".join)
@pytest.mark.parametrize(
    ("source_kind", "target_kind"),
    list(itertools.product(KINDS, KINDS)),
    ids=lambda kind: kind.name,
)
def test_every_pair(source_kind: Kind, target_kind: Kind, places: tuple[str, str]) -> None:
    source = made(source_kind, places[0], [1, 2, 3, 4, 5])
    target = MemoryManager(5, "int32", target_kind, places[1])
    before = source.copies
    reset(*places)
    target.copy_from(source)
    pair = (source_kind, target_kind)
    if places == ("cpu", "cpu"):
        expected = (NOTHING, NOTHING)
    elif places[0] == places[1]:
        expected = (ON_ONE_DEVICE.get(pair, NOTHING),) * 2
    else:
        expected = BETWEEN_DEVICES.get(pair, (NOTHING, NOTHING))
    assert (transfers(places[0]), transfers(places[1])) == expected
    if places[0] == places[1]:
        assert target.copies == sum(expected[0])
    else:
        assert target.copies + source.copies - before >= sum(map(sum, expected))
    assert numbers(target) == [1, 2, 3, 4, 5]
    assert numbers(source) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("places", PLACES, ids=" to ".join)
@pytest.mark.parametrize(
    ("source_kind", "target_kind"),
    list(itertools.product(KINDS, KINDS)),
    ids=lambda kind: kind.name,
)
def test_every_pair_in_part(source_kind: Kind, target_kind: Kind, places: tuple[str, str]) -> None:
    source = made(source_kind, places[0], [1, 2, 3, 4, 5])
    target = made(target_kind, places[1], [9, 9, 9, 9])
    target.copy_from(source, count=2, offset=1, source_offset=3)
    assert numbers(target) == [9, 4, 5, 9]
    # The copy is of the numbers as they were: the source may be changed at once.
    source.set(3, 70)
    assert numbers(target) == [9, 4, 5, 9]
    assert numbers(source) == [1, 2, 3, 70, 5]


@pytest.mark.parametrize("kind", [HOST, MANAGED], ids=lambda kind: kind.name)
def test_copy_from_the_host_is_over_when_it_returns(kind: Kind) -> None:
    """The owner of host memory may change it through an array taken before."""
    source, target = made(kind, "loopback", [1, 2]), MemoryManager(2, "int32", DEVICE, "loopback")
    gate = threading.Event()
    target.device.stream.launch(lambda: gate.wait(20))
    threading.Timer(0.02, gate.set).start()
    target.copy_from(source)
    assert gate.is_set()


@pytest.mark.parametrize("target_kind", KINDS, ids=lambda kind: kind.name)
def test_managed_memory_written_on_the_device_is_read_there(target_kind: Kind) -> None:
    source = MemoryManager(3, "int32", MANAGED, "loopback")
    array = source.on_device(write=True, discard=True)
    source.device.stream.launch(lambda: array.fill(6))
    target = MemoryManager(3, "int32", target_kind, "loopback")
    reset("loopback")
    target.copy_from(source)
    assert transfers("loopback") == ((0, 1, 0) if target_kind is HOST else (0, 0, 1))
    assert numbers(target) == [6, 6, 6]


def test_part_of_a_managed_target_goes_to_its_fresh_side() -> None:
    """A part that lands on a stale side would have to fetch the rest first."""
    target = made(MANAGED, "loopback", [0, 0, 0, 0])
    target.on_device(write=True)
    source = made(MANAGED, "loopback", [5])
    reset("loopback")
    target.copy_from(source, offset=2)
    assert transfers("loopback") == (1, 0, 0)
    assert numbers(target) == [0, 0, 5, 0]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("place", ["cpu", "loopback"])
def test_overlapping_copy_inside_one_memory(kind: Kind, place: str) -> None:
    memory = made(kind, place, [1, 2, 3, 4, 5])
    memory.copy_from(memory, count=4, offset=1)
    assert numbers(memory) == [1, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("place", ["cpu", "loopback"])
def test_copy_from_numpy(kind: Kind, place: str) -> None:
    memory = MemoryManager(6, "int32", kind, place)
    grid = np.arange(6, dtype="int32").reshape(2, 3)
    memory.copy_from(grid.T)
    grid[:] = -1
    assert numbers(memory) == [0, 3, 1, 4, 2, 5]
    unwritable = np.array([8, 9], "int32")
    unwritable.flags.writeable = False
    memory.copy_from(unwritable, offset=4)
    memory.copy_from(np.array(7, "int32"))
    assert numbers(memory) == [7, 3, 1, 4, 8, 9]


def test_copy_of_nothing_moves_nothing() -> None:
    memory = made(DEVICE, "loopback", [1])
    reset("loopback")
    memory.copy_from(np.zeros(0, "int32"))
    memory.copy_from(made(HOST, "cpu", [5, 6]), count=0, source_offset=2)
    empty = MemoryManager(0, "int32", DEVICE, "loopback")
    empty.copy_from(np.zeros(0, "int32"))
    assert transfers("loopback") == NOTHING
    assert numbers(memory) == [1]


@pytest.mark.parametrize("place", ["cpu", "loopback"])
def test_half_precision_keeps_its_bits(place: str) -> None:
    values = np.array([1.5, -2.0, np.inf, np.nan], ml_dtypes.bfloat16)
    memory = MemoryManager(4, "bfloat16", DEVICE, place)
    memory.copy_from(values)
    back = MemoryManager(4, ml_dtypes.bfloat16, HOST, "cpu")
    back.copy_from(memory)
    assert back.host().view("uint16").tolist() == values.view("uint16").tolist()
    assert memory.get(0) == 1.5
    assert isinstance(memory.get(0), float)


@pytest.mark.parametrize(
    "options",
    [
        {"count": 4},
        {"count": -1},
        {"offset": 3},
        {"offset": -1},
        {"source_offset": 4},
        {"source_offset": -1},
        {"count": 3, "source_offset": 1},
    ],
)
def test_ranges_that_do_not_fit_are_refused(options: dict[str, int]) -> None:
    memory = made(MANAGED, "cpu", [1, 2, 3, 4, 5])
    with pytest.raises(ShapeError, match=r"copy_from.*count"):
        memory.copy_from(np.zeros(3, "int32"), **options)
    assert numbers(memory) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("source", [np.zeros(2, "int64"), np.zeros(2, ">i4"), [1, 2]])
def test_other_types_are_refused(source: Any) -> None:
    with pytest.raises(DtypeError, match=r"copy_from.*expected"):
        MemoryManager(2, "int32").copy_from(source)


def test_path_fetches_the_smaller_stale_side() -> None:
    fresh_on_host = {MemorySide.DEVICE: 1000, MemorySide.HOST: 0}
    part_fresh_on_device = {MemorySide.DEVICE: 0, MemorySide.HOST: 400}
    path = cheapest_path(fresh_on_host, part_fresh_on_device, 8, same_device=True)
    assert path == (MemorySide.HOST, MemorySide.DEVICE)
    path = cheapest_path({MemorySide.DEVICE: 0}, {MemorySide.DEVICE: 0}, 8, same_device=False)
    assert path == (MemorySide.DEVICE, MemorySide.DEVICE)
