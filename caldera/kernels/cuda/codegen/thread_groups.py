"""How many threads share a row, and how much of it each keeps: see
include/row_primitives.cuh."""

from __future__ import annotations

from dataclasses import dataclass, replace

from caldera.kernels.cuda.codegen.strided import next_power_of_two

_BLOCK_SIZES = (128, 256, 512, 1024)
_STREAM_THREADS = 512
"""Threads that share a row too long to be kept."""
_WARPS = 4
"""Warps of a block in which each warp has a row of its own."""


@dataclass(frozen=True)
class ThreadGroup:
    """`kind` is "thread", "warp" or "block"; each thread takes `together` neighbours at a time, at
    most `rounds` times (0: as often as it takes, without keeping them)."""

    kind: str
    rounds: int
    together: int
    threads: int

    @property
    def text(self) -> str:
        """Its type in a kernel's text."""
        return f"{self.kind}_group<{self.rounds}, {self.together}>"

    @property
    def rows(self) -> int:
        """Rows that a block has at a time."""
        return {"thread": self.threads, "warp": self.threads // 32, "block": 1}[self.kind]

    def exactly(self, length: int) -> ThreadGroup:
        """The same without room for more than rows of this length: where a kernel keeps several
        numbers of each element, that is many registers.

        >>> thread_group_for(768, 8, 32).exactly(768).rounds
        3
        """
        lanes = 32 if self.kind == "warp" else self.threads
        return replace(self, rounds=min(self.rounds, -(-length // (lanes * self.together))))

    def blocks(self, rows: int) -> int:
        """Blocks for so many rows."""
        return -(-rows // self.rows)


def thread_group_for(length: int, together: int, most: int) -> ThreadGroup:
    """The group for rows of a length; a thread keeps at most `most` elements.

    >>> thread_group_for(768, 4, 32)
    ThreadGroup(kind='warp', rounds=8, together=4, threads=128)
    >>> thread_group_for(1 << 20, 1, 32).rounds
    0
    """
    pieces = -(-length // together)
    rounds = next_power_of_two(-(-pieces // 32))
    if rounds * together <= most:
        return ThreadGroup("warp", rounds, together, 32 * _WARPS)
    for threads in _BLOCK_SIZES:
        rounds = next_power_of_two(-(-pieces // threads))
        if rounds * together <= most:
            return ThreadGroup("block", rounds, together, threads)
    return ThreadGroup("block", 0, together, _STREAM_THREADS)


def threads_for(numbers: int, fewest: int = 32, most: int = 256) -> int:
    """Threads of a block that works on so many numbers at once: a warp for every few of them, since
    those that wait for each other in vain cost time.

    >>> threads_for(100), threads_for(1000), threads_for(1 << 20)
    (32, 256, 256)
    """
    threads = fewest
    while threads < most and threads * 4 <= numbers:
        threads *= 2
    return threads


def thread_per_row(threads: int = 128) -> ThreadGroup:
    """A thread for each row, whose neighbours have the rows beside it."""
    return ThreadGroup("thread", 0, 1, threads)
