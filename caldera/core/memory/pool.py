"""Memory pools in size classes: freed blocks are cached and reused.

A request is rounded up to the next of 512, 640, 768, 896, 1024, 1280, ... bytes (four steps per
power of two), so a block is less than 25% larger than the request, except for small ones. Larger
blocks are fewer and more uniform, and each wastes more. There are 8 steps above 1 MiB, 32 above 32
MiB, and 512 above 512 MiB, the size of arenas.

A block is freed by reference counting. It returns to its pool with the last reference, and every
array over it (`host_view`) holds a reference, as do all views, slices and DLPack exports of that
array. Memory is therefore never reused while it can be read.

On a machine with several NUMA nodes the pages of a large block are interleaved over all nodes. By
default a page is placed on the node of the first processor that writes to it, mostly the processor
that reads a batch or draws weights; a single node would then serve all processors. A process bound
to one node (`numactl --cpunodebind=0`, or by an MPI launcher) keeps its memory there.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import platform
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caldera.base.config import settings
from caldera.base.formatting import bytes_text
from caldera.base.machine import usable_numa_nodes
from caldera.errors import OutOfMemoryError, ShapeError

LEAST_BYTES = 1 << 20
"""Minimum bytes of a block with interleaved pages; smaller blocks stay in a processor's caches."""
_MBIND = {"x86_64": 237, "aarch64": 235}
"""The number of Linux's system call, for which the C library has no function."""
_INTERLEAVE = 3
_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


def interleave(address: int, nbytes: int, nodes: Sequence[int] | None = None) -> bool:
    """Interleave unwritten pages over nodes; return True if the system accepted the request.

    The default is all nodes that the process may use, if there are several.

    >>> from caldera.core.memory.pool import interleave
    >>> from caldera.core.memory.pool import take_host_memory
    >>> interleave(take_host_memory(1000)[0], 1000)
    False
    """
    if nbytes < LEAST_BYTES:
        return False
    if nodes is None:
        nodes = _usable_nodes()
        if len(nodes) < 2:
            return False
    mbind = _mbind()
    if mbind is None:
        return False
    # Whole pages only: the first and the last page may contain other data.
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    mask = (ctypes.c_ulong * (max(nodes) // _BITS + 1))()
    for node in nodes:
        mask[node // _BITS] |= 1 << node % _BITS
    return mbind(start, end - start, mask) == 0


_usable_nodes = cache(usable_numa_nodes)


@cache
def _mbind() -> Callable[[int, int, ctypes.Array[ctypes.c_ulong]], int] | None:
    """Linux's mbind(2); None on another system or processor."""
    number = _MBIND.get(platform.machine()) if platform.system() == "Linux" else None
    if number is None:
        return None
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long

    def mbind(start: int, nbytes: int, mask: ctypes.Array[ctypes.c_ulong]) -> int:
        # The kernel takes the number of bits to be one more than it reads.
        bits = ctypes.c_ulong(len(mask) * _BITS + 1)
        length = ctypes.c_ulong(nbytes)
        return int(call(number, ctypes.c_void_p(start), length, _INTERLEAVE, mask, bits, 0))

    return mbind


ALIGNMENT = 128
SMALLEST = 512
STEPS = ((512 << 20, 512), (32 << 20, 32), (1 << 20, 8), (0, 4))
"""Pairs of a size in bytes and the rounding steps per power of two above it."""
SMALL = STEPS[-2][0]
OWNERS_SHOWN = 5
UNNAMED = "unnamed"


class Segment(NamedTuple):
    """Bytes from the system, which are returned when `storage` is dropped."""

    address: int
    size: int
    storage: object


class Block:
    """Lease on `nbytes` bytes at `address`, which ends with its last reference.

    >>> from caldera.core.memory import device
    >>> block = device("cpu").allocate(1000, owner="example")
    >>> block.nbytes, block.owner, block.address % 128
    (1000, 'example', 0)
    """

    __slots__ = ("__weakref__", "_pool", "_segment", "address", "nbytes", "owner")

    def __init__(self, pool: Pool, segment: Segment, nbytes: int, owner: str) -> None:
        self._pool = pool
        self._segment = segment
        self.address = segment.address
        self.nbytes = nbytes
        self.owner = owner

    def __del__(self) -> None:
        self._pool._returned.append((self._segment, self.owner))

    def __repr__(self) -> str:
        return f"Block({self.nbytes} bytes of {self._pool.name}, owner={self.owner!r})"


# For each size class, what makes the object through which NumPy sees a block's bytes.
_lease_makers: dict[int, Callable[[int], Any]] = {}


def _lease_maker(size: int) -> Callable[[int], Any]:
    byte_array: Any = ctypes.c_ubyte * size
    return type("Lease", (byte_array,), {"__slots__": ("block",)}).from_address  # type: ignore[attr-defined]


def host_view(
    block: Block, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return an array over a block that the host can reach; the array keeps the block leased.

    The base of the array is a ctypes object that refers to the block. NumPy shortens chains of
    bases as long as they are arrays, so an array in that place could be skipped, and the block
    with it.

    >>> import numpy as np
    >>> from caldera.core.memory import Pool
    >>> from caldera.core.memory.pool import host_view
    >>> pool = Pool("example")
    >>> part = host_view(pool.allocate(1024), 0, (16, 16), np.dtype("float32"))[3:5]
    >>> pool.in_use
    1024
    """
    size = block._segment.size
    lease_at = _lease_makers.get(size)
    if lease_at is None:
        lease_at = _lease_makers[size] = _lease_maker(size)
    lease = lease_at(block.address)
    lease.block = block
    return np.ndarray(shape, dtype, lease, offset)


def take_host_memory(nbytes: int) -> tuple[int, object]:
    """Return the address of aligned, uninitialised host memory, and the object that owns it.

    >>> from caldera.core.memory.pool import take_host_memory
    >>> address, storage = take_host_memory(100)
    >>> address % 128
    0
    """
    storage = np.empty(nbytes + ALIGNMENT, np.uint8)
    address: int = storage.__array_interface__["data"][0]
    interleave(address, nbytes)
    return -(-address // ALIGNMENT) * ALIGNMENT, storage


def size_class(nbytes: int) -> int:
    """The bytes a request really takes.

    >>> from caldera.core.memory.pool import size_class
    >>> [size_class(nbytes) for nbytes in (1, 512, 513, 641, 1025, 1_000_000, 33 << 20)]
    [512, 512, 640, 768, 1280, 1048576, 34603008]
    """
    if nbytes <= SMALLEST:
        if nbytes < 0:
            raise ShapeError.build("allocate", expected="0 bytes or more", got=str(nbytes))
        return SMALLEST
    return rounded_up(nbytes, next(steps for above, steps in STEPS if nbytes > above))


def rounded_up(number: int, steps: int = 4) -> int:
    """Round a number up, to `steps` equal steps per power of two.

    >>> from caldera.core.memory.pool import rounded_up
    >>> [rounded_up(number) for number in (9, 10, 11, 100)]
    [10, 10, 12, 112]
    """
    last = number - 1
    shift = last.bit_length() - steps.bit_length()
    return ((last >> shift) + 1) << shift


class Pool:
    """Allocates blocks of a memory, caches freed ones, and records their owners.

    `take(nbytes)` allocates memory from the system: (address, owner object). `capacity` is the
    limit in bytes of used and cached blocks together; None means `settings.memory_limit`.

    >>> from caldera.core.memory import Pool
    >>> pool = Pool("example")
    >>> block = pool.allocate(600, owner="weights")
    >>> pool.in_use, pool.cached, pool.peak
    (640, 0, 640)
    >>> del block
    >>> pool.in_use, pool.cached, pool.trim()
    (0, 640, 640)
    """

    def __init__(
        self,
        name: str,
        take: Callable[[int], tuple[int, object]] = take_host_memory,
        capacity: int | None = None,
    ) -> None:
        self.name = name
        self._take = take
        self._capacity = capacity
        self._free: dict[int, list[Segment]] = {}
        self._owners: dict[str, int] = {}
        self._in_use = 0
        self._cached = 0
        self._peak = 0
        self._lock = threading.RLock()
        # Blocks die anywhere, also inside `allocate` when the garbage collector runs there. Their
        # finalizer therefore only appends here, which is atomic; the next call does the books.
        self._returned: deque[tuple[Segment, str]] = deque()
        _pools.add(self)

    def allocate(self, nbytes: int, owner: str = "") -> Block:
        """Return a block of at least `nbytes` bytes, not cleared, aligned to 128 bytes.

        >>> from caldera.core.memory import Pool
        >>> Pool("example").allocate(100, owner="bias")
        Block(100 bytes of example, owner='bias')
        """
        if SMALLEST < nbytes <= SMALL:
            # `size_class`, without the cost of a call.
            last = nbytes - 1
            shift = last.bit_length() - 3
            size = ((last >> shift) + 1) << shift
        else:
            size = size_class(nbytes)
        if not owner:
            owner = UNNAMED
        lock = self._lock
        # Half the cost of a `with` statement, in the path every tensor takes.
        lock.acquire()
        try:
            if self._returned:
                self._reclaim()
            free = self._free.get(size)
            if free:
                segment = free.pop()
                self._cached -= size
            else:
                segment = self._fresh(size, nbytes, owner)
            in_use = self._in_use = self._in_use + size
            if in_use > self._peak:
                self._peak = in_use
            owners = self._owners
            owners[owner] = owners.get(owner, 0) + size
        finally:
            lock.release()
        return Block(self, segment, nbytes, owner)

    @property
    def capacity(self) -> int | None:
        """The most bytes this pool may hold; None when only the system sets a limit."""
        return settings.memory_limit if self._capacity is None else self._capacity

    @property
    def in_use(self) -> int:
        """Bytes of referenced blocks, as rounded up."""
        with self._lock:
            self._reclaim()
            return self._in_use

    @property
    def cached(self) -> int:
        """Bytes kept for the next request."""
        with self._lock:
            self._reclaim()
            return self._cached

    @property
    def peak(self) -> int:
        """Maximum of `in_use` since the start or `reset_peak`."""
        return self._peak

    def reset_peak(self) -> None:
        """Restart the measurement of `peak` from the current use.

        >>> from caldera.core.memory import Pool
        >>> pool = Pool("example")
        >>> pool.allocate(600).nbytes
        600
        >>> pool.reset_peak()
        >>> pool.peak
        0
        """
        with self._lock:
            self._reclaim()
            self._peak = self._in_use

    def report(self) -> dict[str, int]:
        """Return bytes in use by owner, the largest first.

        >>> from caldera.core.memory import Pool
        >>> pool = Pool("example")
        >>> held = pool.allocate(1000, "bias"), pool.allocate(2000, "weights")
        >>> pool.report()
        {'weights': 2048, 'bias': 1024}
        """
        with self._lock:
            self._reclaim()
            by_size = sorted(self._owners.items(), key=lambda item: (-item[1], item[0]))
        return dict(by_size)

    def trim(self) -> int:
        """Return all cached memory to the system, and return the number of bytes.

        >>> from caldera.core.memory import Pool
        >>> pool = Pool("example")
        >>> pool.allocate(600).nbytes
        600
        >>> pool.trim(), pool.cached
        (640, 0)
        """
        with self._lock:
            self._reclaim()
            given_back = self._cached
            self._free.clear()
            self._cached = 0
        return given_back

    def _reclaim(self) -> None:
        returned = self._returned
        while returned:
            segment, owner = returned.popleft()
            size = segment.size
            free = self._free.get(size)
            if free is None:
                free = self._free[size] = []
            free.append(segment)
            self._cached += size
            self._in_use -= size
            remaining = self._owners[owner] - size
            if remaining:
                self._owners[owner] = remaining
            else:
                del self._owners[owner]

    def _fresh(self, size: int, nbytes: int, owner: str) -> Segment:
        """Allocate memory from the system; if that fails, first return unused memory to it."""
        segment = self._from_system(size)
        if segment is None:
            self.trim()
            segment = self._from_system(size)
        if segment is None:
            # Arrays in reference cycles are dead already, but wait for the collector.
            gc.collect()
            self.trim()
            segment = self._from_system(size)
        if segment is None:
            raise self._exhausted(nbytes, owner)
        return segment

    def _from_system(self, size: int) -> Segment | None:
        capacity = self.capacity
        if capacity is not None and self._in_use + self._cached + size > capacity:
            return None
        try:
            address, storage = self._take(size)
        except MemoryError:
            return None
        return Segment(address, size, storage)

    def _exhausted(self, nbytes: int, owner: str) -> OutOfMemoryError:
        capacity = self.capacity
        holders = list(self.report().items())
        largest = ", ".join(f"{name} {bytes_text(size)}" for name, size in holders[:OWNERS_SHOWN])
        if len(holders) > OWNERS_SHOWN:
            largest += f" and {len(holders) - OWNERS_SHOWN} more"
        return OutOfMemoryError.build(
            f"memory of {self.name}",
            expected=f"{bytes_text(nbytes)} of free memory for {owner!r}",
            got=f"{bytes_text(self.in_use)} in use, {bytes_text(self.cached)} cached, capacity "
            + ("the limit of the system" if capacity is None else bytes_text(capacity)),
            hint=f"largest owners: {largest or 'none'}; use smaller batches, delete unused "
            "tensors, or raise settings.memory_limit",
        )


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _renew_locks() -> None:
    """In a child after a fork: a thread of the parent may have held a lock, and is not here."""
    for pool in _pools:
        pool._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
