"""Blocks whose pages lie on all nodes in turn, as Linux says where they lie."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest

from caldera.core.memory import pool as numa
from caldera.core.memory.pool import Pool, take_host_memory

MAPS = Path("/proc/self/numa_maps")
needs_maps = pytest.mark.skipif(not MAPS.exists(), reason="no NUMA nodes known to this kernel")
LARGE = 64 << 20


def _interleaved_pages() -> dict[int, int]:
    """How many pages that lie on nodes in turn were written, by the address of the first."""
    found = {}
    for line in MAPS.read_text().splitlines():
        address, policy, *rest = line.split()
        if policy.startswith("interleave"):
            counts = [word.removeprefix("anon=") for word in rest if word.startswith("anon=")]
            found[int(address, 16)] = int(counts[0]) if counts else 0
    return found


@needs_maps
def test_pages_of_a_block_lie_on_the_nodes_in_turn() -> None:
    address, storage = take_host_memory(LARGE)
    assert numa.interleave(address, LARGE, [0])
    ctypes.memset(address, 1, LARGE)
    [(start, pages)] = _interleaved_pages().items()
    assert address <= start < address + (1 << 16)
    assert LARGE - (2 << 16) <= pages * mmap.PAGESIZE <= LARGE
    del storage
    assert not _interleaved_pages()


@needs_maps
@pytest.mark.parametrize(("nodes", "expected"), [([0], 0), ([0, 0], 1)])
def test_a_pool_asks_for_it_where_there_are_several_nodes(
    monkeypatch: pytest.MonkeyPatch, nodes: list[int], expected: int
) -> None:
    # One node counted twice: this machine may have no second.
    monkeypatch.setattr(numa, "_usable_nodes", lambda: nodes)
    pool = Pool("example")
    small, large = pool.allocate(1000), pool.allocate(LARGE)
    ctypes.memset(large.address, 1, LARGE)
    assert len(_interleaved_pages()) == expected
    del small, large
    pool.trim()


def test_a_node_that_is_not_there_is_refused_and_the_memory_is_as_good() -> None:
    address, storage = take_host_memory(LARGE)
    assert not numa.interleave(address, LARGE, [1000])
    ctypes.memset(address, 7, LARGE)
    assert ctypes.string_at(address + LARGE - 1, 1) == b"\x07"
    del storage


def test_other_systems_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa.platform, "system", lambda: "Darwin")
    numa._mbind.cache_clear()
    try:
        assert not numa.interleave(take_host_memory(LARGE)[0], LARGE, [0])
    finally:
        numa._mbind.cache_clear()
