"""The text of kernels whose body is a call of what a header holds."""

from __future__ import annotations

from collections.abc import Sequence

from caldera.kernels.cuda.codegen.dtypes import STORED
from caldera.kernels.table import Array


def type_of(array: Array) -> str:
    """How the elements of an array are stored."""
    return STORED[array.dtype.name]


def flags(*values: bool) -> str:
    """Template arguments.

    >>> flags(True, False)
    'true, false'
    """
    return ", ".join("true" if value else "false" for value in values)


def kernel_source(
    header: str,
    name: str,
    threads: int,
    parameters: Sequence[str],
    body: str,
    resident: int | None = None,
) -> str:
    """One kernel, for blocks of at most so many threads: these have to find room in a
    multiprocessor, whatever the compiler makes of the body, and `resident` of them if that is said.

    >>> body = "y[threadIdx.x] = 0.0f;"
    >>> print(kernel_source("row_primitives.cuh", "clear", 32, ["float* y"], body))
    #include "row_primitives.cuh"
    extern "C" __global__ void __launch_bounds__(32) clear(float* y) {
        y[threadIdx.x] = 0.0f;
    }
    <BLANKLINE>
    """
    bounds = str(threads) if resident is None else f"{threads}, {resident}"
    return (
        f'#include "{header}"\n'
        f'extern "C" __global__ void __launch_bounds__({bounds}) {name}('
        f"{', '.join(parameters)}) {{\n    {body}\n}}\n"
    )
