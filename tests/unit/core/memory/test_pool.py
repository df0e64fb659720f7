"""The pool: size classes, reuse, accounts, limits, and blocks that stay leased while seen."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from caldera.base.config import settings
from caldera.core.memory.pool import ALIGNMENT, Block, Pool, host_view, size_class, take_host_memory
from caldera.errors import OutOfMemoryError, ShapeError

FLOAT = np.dtype(np.float32)


@pytest.fixture
def pool() -> Pool:
    return Pool("test")


def view_of(block: Block) -> np.ndarray[Any, Any]:
    return host_view(block, 0, (block.nbytes // 4,), FLOAT)


@given(st.integers(513, 2**42))
def test_size_class_is_just_large_enough(nbytes: int) -> None:
    size = size_class(nbytes)
    assert nbytes <= size < 1.25 * nbytes
    assert size_class(size) == size
    assert size % 128 == 0


@given(st.integers(1, 2**40), st.integers(1, 2**40))
def test_size_classes_are_ordered(first: int, second: int) -> None:
    assert size_class(min(first, second)) <= size_class(max(first, second))


@pytest.mark.parametrize(
    ("above", "steps"), [(1 << 10, 4), (1 << 20, 8), (16 << 20, 8), (32 << 20, 32), (1 << 30, 512)]
)
def test_classes_to_each_power_of_two(above: int, steps: int) -> None:
    asked = range(above + 1, 2 * above + 1, above // 1024)
    assert len({size_class(nbytes) for nbytes in asked}) == steps


@given(st.integers(1, 2**31))
@example((1 << 20) - 1)
@example(1 << 20)
@example((1 << 20) + 1)
def test_a_block_takes_what_its_class_says(nbytes: int) -> None:
    pool = Pool("test", take=lambda size: (ALIGNMENT, size))
    block = pool.allocate(nbytes)
    assert (pool.in_use, block.nbytes) == (size_class(nbytes), nbytes)


def test_negative_size_is_refused(pool: Pool) -> None:
    with pytest.raises(ShapeError, match="0 bytes or more"):
        pool.allocate(-1)


@pytest.mark.parametrize("nbytes", [0, 1, 511, 513, 5000, 2**20 + 1])
def test_blocks_are_aligned_and_writable_to_the_last_byte(pool: Pool, nbytes: int) -> None:
    block = pool.allocate(nbytes)
    assert block.address % 64 == 0
    everything = host_view(block, 0, (nbytes,), np.dtype(np.uint8))
    everything[:] = 7
    assert (everything == 7).all()


def test_freed_block_is_handed_out_again(pool: Pool) -> None:
    block = pool.allocate(5000)
    address = block.address
    del block
    assert pool.allocate(4900).address == address


def test_blocks_alive_at_the_same_time_do_not_overlap(pool: Pool) -> None:
    blocks = [pool.allocate(600) for _ in range(50)]
    arrays = [view_of(block) for block in blocks]
    for number, array in enumerate(arrays):
        array[:] = number
    assert all((array == number).all() for number, array in enumerate(arrays))


def test_accounts(pool: Pool) -> None:
    weights = pool.allocate(1024, owner="weights")
    more = pool.allocate(2048, owner="weights")
    other = pool.allocate(512)
    assert (pool.in_use, pool.cached, pool.peak) == (3584, 0, 3584)
    assert list(pool.report().items()) == [("weights", 3072), ("unnamed", 512)]
    del more, other
    assert (pool.in_use, pool.cached, pool.peak) == (1024, 2560, 3584)
    assert pool.report() == {"weights": 1024}
    pool.reset_peak()
    assert pool.peak == 1024
    del weights
    assert (pool.in_use, pool.report()) == (0, {})


def test_trim_gives_the_cache_back_to_the_system() -> None:
    alive: list[weakref.ref[Any]] = []

    def take(nbytes: int) -> tuple[int, object]:
        address, storage = take_host_memory(nbytes)
        alive.append(weakref.ref(storage))
        return address, storage

    pool = Pool("test", take)
    kept, freed = pool.allocate(1024), pool.allocate(2048)
    del freed
    assert alive[1]() is not None
    assert pool.trim() == 2048
    assert (pool.in_use, pool.cached) == (1024, 0)
    assert alive[1]() is None
    assert alive[0]() is not None
    assert kept.nbytes == 1024


MAKE_VIEW: dict[str, Callable[[np.ndarray[Any, Any]], object]] = {
    "array": lambda array: array,
    "slice": lambda array: array[3:7],
    "view of a view": lambda array: array[2:][3:].reshape(-1, 1)[::2],
    "reshape": lambda array: array.reshape(-1, 2),
    "transpose": lambda array: array.reshape(-1, 2).T,
    "other dtype": lambda array: array.view(np.uint8),
    "frombuffer": lambda array: np.frombuffer(array, np.int8),
    "asarray": lambda array: np.asarray(array),
    "from_dlpack": lambda array: np.from_dlpack(array),
    "dlpack of a slice": lambda array: np.from_dlpack(array[4:8]),
    "memoryview": lambda array: memoryview(array),
    "broadcast": lambda array: np.broadcast_to(array[:1], (5,)),
    "iterator": lambda array: iter(array),
    "subclass": lambda array: array.view(np.recarray),
}


@pytest.mark.parametrize("way", MAKE_VIEW)
def test_whatever_sees_a_block_keeps_it_leased(pool: Pool, way: str) -> None:
    block = pool.allocate(4096)
    address = block.address
    seen = MAKE_VIEW[way](view_of(block))
    del block
    assert pool.in_use == 4096
    assert pool.allocate(4096).address != address
    pool.trim()
    del seen
    assert pool.in_use == 0
    assert pool.allocate(4096).address == address


def test_capacity_uses_the_cache_first() -> None:
    pool = Pool("test", capacity=4096)
    del_me = pool.allocate(4096)
    del del_me
    assert pool.cached == 4096
    held = pool.allocate(1024)
    assert (pool.in_use, pool.cached) == (1024, 0)
    assert held.nbytes == 1024


def test_exhaustion_says_everything() -> None:
    pool = Pool("card", capacity=8192)
    weights = pool.allocate(4096, owner="weights")
    activations = pool.allocate(2048, owner="activations")
    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(4000, owner="gradients")
    message = str(caught.value)
    for part in (
        "memory of card",
        "expected 3.9 KiB of free memory for 'gradients'",
        "6.0 KiB in use",
        "0 B cached",
        "capacity 8.0 KiB",
        "weights 4.0 KiB, activations 2.0 KiB",
    ):
        assert part in message
    assert isinstance(caught.value, MemoryError)
    assert (pool.in_use, pool.report()) == (6144, {"weights": 4096, "activations": 2048})
    del weights
    assert pool.allocate(4096).nbytes + activations.nbytes == 6144


def test_exhaustion_lists_only_the_largest_owners() -> None:
    pool = Pool("card", capacity=4096)
    held = [pool.allocate(512, owner=f"layer {number}") for number in range(7)]
    with pytest.raises(OutOfMemoryError, match="layer 4 512 B and 2 more"):
        pool.allocate(1024)
    assert len(held) == 7


def test_memory_in_dead_cycles_is_found_before_giving_up() -> None:
    pool = Pool("card", capacity=4096)
    gc.disable()
    try:
        cycle: list[object] = [pool.allocate(4096)]
        cycle.append(cycle)
        del cycle
        assert pool.allocate(4096).nbytes == 4096
    finally:
        gc.enable()


def test_limit_of_the_settings_is_used(pool: Pool) -> None:
    with settings.override(memory_limit=1024):
        assert pool.capacity == 1024
        with pytest.raises(OutOfMemoryError, match=r"capacity 1.0 KiB"):
            pool.allocate(2048)
    assert pool.allocate(2048).nbytes == 2048


def test_refusal_of_the_system_is_translated_after_trimming() -> None:
    left = [2]

    def take(nbytes: int) -> tuple[int, object]:
        if not left[0]:
            raise MemoryError
        left[0] -= 1
        return take_host_memory(nbytes)

    pool = Pool("test", take)
    held = pool.allocate(1024, owner="held")
    cached = pool.allocate(2048)
    del cached
    with pytest.raises(
        OutOfMemoryError, match=r"1.0 KiB in use, 0 B cached.*the limit of the system"
    ):
        pool.allocate(4096)
    assert held.owner == "held"


def test_impossible_request_to_the_real_system_is_translated(pool: Pool) -> None:
    with pytest.raises(OutOfMemoryError, match="TiB of free memory for 'dreamer'"):
        pool.allocate(2**55, owner="dreamer")


def test_threads_never_share_a_block(pool: Pool) -> None:
    failures: list[str] = []

    def work(number: int) -> None:
        order = random.Random(number)
        held: list[np.ndarray[Any, Any]] = []
        for _ in range(400):
            array = view_of(pool.allocate(order.choice((512, 1024, 4096)), owner=str(number)))
            array[:] = number
            held.append(array)
            if len(held) > 8:
                old = held.pop(order.randrange(8))
                if not (old == number).all():
                    failures.append(f"thread {number} saw another's numbers")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert (pool.in_use, pool.report()) == (0, {})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_child_after_fork_can_allocate_although_a_thread_held_the_lock() -> None:
    taking, go_on = threading.Event(), threading.Event()

    def take(nbytes: int) -> tuple[int, object]:
        taking.set()
        go_on.wait(20)
        return take_host_memory(nbytes)

    pool = Pool("test", take)
    thread = threading.Thread(target=lambda: pool.allocate(1024))
    thread.start()
    taking.wait(20)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(30)
            go_on.set()
            status = 0 if pool.allocate(1024).nbytes == 1024 else 1
        finally:
            os._exit(status)
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_blocks_dying_inside_an_allocation_are_returned(pool: Pool) -> None:
    """The collector runs inside `allocate` and finalizes cycles that hold blocks."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            cycle: list[object] = [pool.allocate(700)]
            cycle.append(cycle)
    finally:
        gc.set_threshold(*before)
    del cycle
    gc.collect()
    assert pool.in_use == 0
