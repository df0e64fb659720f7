"""Large blocks on a machine of several NUMA nodes: their pages lie on all of them in turn.

A page lies on the node whose processor first writes to it. Blocks are mostly written first by the
thread that reads a batch or draws weights, so all of them would lie on one node, whose memory then
serves the processors of every node, while the memory of the others rests. Kernels give parts to
whichever thread is free, so no page has a node that it is used from: in turn, each node serves its
share. A process that is bound to one node (`numactl --cpunodebind=0`, or as MPI launchers do with
ranks) keeps all it has there.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Callable, Sequence
from functools import cache

from caldera.base.machine import usable_numa_nodes

LEAST_BYTES = 1 << 20
"""Smaller blocks stay in a processor's caches."""
_MBIND = {"x86_64": 237, "aarch64": 235}
"""The number of Linux's system call, for which the C library has no function."""
_INTERLEAVE = 3
_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


def interleave(address: int, nbytes: int, nodes: Sequence[int] | None = None) -> bool:
    """Let pages that are not written yet lie on these nodes in turn, by default on those that the
    process may use, if there are several; whether that was asked for and granted.

    >>> from caldera.core.memory.numa import interleave
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
    # Whole pages: what else lies on the first and the last is not ours.
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    mask = (ctypes.c_ulong * (max(nodes) // _BITS + 1))()
    for node in nodes:
        mask[node // _BITS] |= 1 << node % _BITS
    return mbind(start, end - start, mask) == 0


@cache
def _usable_nodes() -> list[int]:
    return usable_numa_nodes()


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
