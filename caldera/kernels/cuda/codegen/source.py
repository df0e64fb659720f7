"""Sources of kernels: those whose body is a call of what a header holds, and templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from caldera.kernels.cuda.codegen.signature import Argument, Parameter, Signature, number
from caldera.kernels.cuda.runtime.driver import Size
from caldera.kernels.cuda.runtime.launch import Launch

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
    signature: Signature,
    body: str,
    resident: int | None = None,
) -> str:
    """One kernel. Blocks of at most so many threads have to find room in a multiprocessor, whatever
    the compiler makes of the body, and `resident` of them if that is said; None leaves it to it.

    >>> import numpy as np
    >>> from caldera.kernels.cuda.codegen.signature import pointer
    >>> signature = Signature({"y": pointer(np.zeros(1, "float32"))})
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
    signature: Signature,
    body: str,
    *,
    bounded: bool = True,
    threads: int | None = None,
    resident: int | None = None,
    shared: int = 0,
) -> Launch:
    """A launch of such a kernel. If it is `bounded`, blocks of the source have at most `threads`,
    which are those of the launch if nothing is said; so have those that might not fit."""
    most = threads or (block if isinstance(block, int) else prod(block))
    limit = most if bounded or most > ALWAYS_FIT else None
    source = kernel_source(header, name, limit, signature, body, resident)
    return Launch(source, name, grid, block, signature, shared)


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

    def bind(self, **arguments: Argument | int) -> Signature:
        """What a launch passes, by name; numbers are as wide as the parameters."""
        assert arguments.keys() == self.kinds.keys(), (self.name, *arguments)
        return Signature(
            {
                name: Parameter(kind, number(kind, given) if isinstance(given, int) else given)
                for name, kind in self.kinds.items()
                for given in (arguments[name],)
            }
        )
