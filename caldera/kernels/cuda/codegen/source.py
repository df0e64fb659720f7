"""Kernel sources: calls of header functions, templates, and the number of threads per row.

The row primitives are in include/row_primitives.cuh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from caldera.kernels.cuda.codegen.expression import Argument, KernelSignature, Parameter, number
from caldera.kernels.cuda.codegen.strides import next_power_of_two
from caldera.kernels.cuda.runtime.driver import Size
from caldera.kernels.cuda.runtime.launch import KernelLaunch

ALWAYS_FIT = 256
"""Threads of a block for which a card has registers, whatever a compiler makes of their code."""


def flags(*values: bool) -> str:
    """Template arguments.

    >>> flags(True, False)
    'true, false'
    """
    return ", ".join("true" if value else "false" for value in values)


def bounds_for(*block: int) -> str:
    """What the compiler has to know of a block: for many threads it must do with fewer registers.

    >>> bounds_for(32, 8), bounds_for(2, 512)
    ('', '__launch_bounds__(1024) ')
    """
    threads = prod(block)
    return f"__launch_bounds__({threads}) " if threads > ALWAYS_FIT else ""


def kernel_source(
    header: str,
    name: str,
    threads: int | None,
    signature: KernelSignature,
    body: str,
    resident: int | None = None,
) -> str:
    """One kernel. Blocks of at most so many threads have to find room in a multiprocessor, whatever
    the compiler makes of the body, and `resident` of them if that is said; None leaves it to it.

    >>> import numpy as np
    >>> from caldera.kernels.cuda.codegen.expression import pointer
    >>> signature = KernelSignature({"y": pointer(np.zeros(1, "float32"))})
    >>> print(kernel_source("math.cuh", "clear", 32, signature, "y[threadIdx.x] = 0.0f;"))
    #include "math.cuh"
    extern "C" __global__ void __launch_bounds__(32) clear(float* y) {
        y[threadIdx.x] = 0.0f;
    }
    <BLANKLINE>
    """
    bounds = ", ".join(str(each) for each in (threads, resident) if each is not None)
    limit = f"__launch_bounds__({bounds}) " if bounds else ""
    return (
        f'#include "{header}"\n'
        f'extern "C" __global__ void {limit}{name}('
        f"{signature.declaration}) {{\n    {body}\n}}\n"
    )


def header_launch(
    header: str,
    name: str,
    grid: Size | int,
    block: Size | int,
    signature: KernelSignature,
    body: str,
    *,
    bounded: bool = True,
    threads: int | None = None,
    resident: int | None = None,
    shared: int = 0,
) -> KernelLaunch:
    """A launch of such a kernel. If it is `bounded`, blocks of the source have at most `threads`,
    which are those of the launch if nothing is said; so have those that might not fit."""
    most = threads or (block if isinstance(block, int) else prod(block))
    limit = most if bounded or most > ALWAYS_FIT else None
    source = kernel_source(header, name, limit, signature, body, resident)
    return KernelLaunch(source, name, grid, block, signature, shared)


@dataclass(frozen=True, eq=False)
class KernelTemplate:
    """A kernel whose text is completed by words, before it is known what a launch will pass.

    `kinds` are the types of the parameters by name; words may stand in them as in the body.

    >>> clear = KernelTemplate("clear", {"y": "{kind}*", "count": "u32"}, "{{ y[count - 1] = 0; }}")
    >>> clear.source(kind="float")
    'extern "C" __global__ void clear(float* y, u32 count) { y[count - 1] = 0; }\\n'
    """

    name: str
    kinds: Mapping[str, str]
    body: str

    def source(self, bounds: str = "", **words: str) -> str:
        """The text of the kernel, with bounds of its launches."""
        kinds = ", ".join(f"{kind} {name}" for name, kind in self.kinds.items())
        limit = f"{bounds} " if bounds else ""
        filled = f"{kinds}) {self.body}".format(**words)
        return f'extern "C" __global__ void {limit}{self.name}({filled}\n'

    def bind(self, **arguments: Argument | int) -> KernelSignature:
        """What a launch passes, by name; numbers are as wide as the parameters."""
        assert arguments.keys() == self.kinds.keys(), (self.name, *arguments)
        return KernelSignature(
            {
                name: Parameter(kind, number(kind, given) if isinstance(given, int) else given)
                for name, kind in self.kinds.items()
                for given in (arguments[name],)
            }
        )


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
