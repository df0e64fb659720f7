"""Fourier transforms on a GPU: cuFFT, and Caldera's Stockham passes.

Stockham passes compute a real transform as a complex one of which half is not written, with a few
rows per block. Rows of up to some thousands of numbers stay in shared memory; longer rows use the
workspace.

cuFFT, called through CuPy, serves long rows and lengths with large prime factors. It transforms
dense rows of complex numbers, so the input is converted to that form and the result back. Plans are
created when a call is bound, so a run only launches and can be captured.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np

from caldera.base.registry import optional_import
from caldera.core.graph.node import Node
from caldera.core.memory.gpus import PACKAGE, card_count
from caldera.kernels.cuda.codegen import (
    STORED,
    Array,
    CudaRunner,
    KernelSignature,
    Parameter,
    axes_of,
    blocks_for,
    computed_type,
    const_pointer,
    element_strides,
    header_launch,
    i64,
    merged,
    null_pointer,
    pointer,
    strided_axes,
    threads_for,
    u32,
    u64,
)
from caldera.kernels.cuda.runtime.device import cupy_array, current_card
from caldera.kernels.cuda.runtime.driver import driver, fits_in_shared
from caldera.kernels.table import TABLE, Call, Kernel, Runner

_ENOUGH = 1024
"""Minimum number of elements that a block works on simultaneously, given enough rows."""
_BLOCKS_EACH = 2
"""Blocks of a multiprocessor that work in the workspace: as many as run at the same time."""
_MOST_RADICES = 31
_STAGE_SECONDS = 4e-7
_ADDITIONS_PER_SECOND = 4e10
"""Complex multiplications and additions per second of a block."""
_BYTES_PER_SECOND = 3e12
KINDS = {"fft": "COMPLEX", "rfft": "REAL", "irfft": "TO_REAL"}


def radices(n: int) -> list[int]:
    """Return the factors of n, each 4 or a prime number.

    >>> radices(4096), radices(360), radices(1)
    ([4, 4, 4, 4, 4, 4], [4, 2, 3, 3, 5], [])
    """
    result = []
    factor = 4
    while n > 1:
        while n % factor == 0:
            result.append(factor)
            n //= factor
        factor = {4: 2, 2: 3}.get(factor, factor + 2)
        if factor * factor > n > 1 and factor > 4:
            result.append(n)
            break
    return result


class _Radices(ctypes.Structure):
    _fields_ = [("count", ctypes.c_uint), ("each", ctypes.c_uint * _MOST_RADICES)]

    @classmethod
    def of(cls, factors: list[int]) -> Parameter:
        each = (ctypes.c_uint * _MOST_RADICES)(*factors)
        return Parameter("Radices", cls(len(factors), each))


@dataclass(frozen=True)
class Signals:
    """Rows of a call: their count, their length, and their layout in the input and the output."""

    count: int
    length: int
    parameters: dict[str, Parameter]


def length_of(node: Node) -> int:
    """The length of the full transform."""
    if node.op.name == "irfft":
        return int(node.attrs["n"])
    return node.inputs[0].shape[node.attrs["axis"]]


def rows_of(node: Node) -> int:
    """Return the number of rows to transform."""
    shape = node.inputs[0].shape if node.op.name != "rfft" else (*node.inputs[0].shape, 2)
    axis = node.attrs["axis"]
    return prod(shape[:axis]) * prod(shape[axis + 1 : -1])


def signals(call: Call) -> Signals:
    """Return the rows of a call, with the parameters of its kernels.

    The parameters are `x`, `out`, the positions of rows in both, and for each array the strides
    along a row and from real to imaginary part.
    """
    (out,), (x,) = call.outputs, call.inputs
    name, axis = call.node.op.name, call.node.attrs["axis"]
    given, to = _steps(x, axis, name != "rfft"), _steps(out, axis, name != "irfft")
    beside = [n for i, n in enumerate(x.shape[: _signal_rank(x, name != "rfft")]) if i != axis]
    rows = merged(axes_of(beside, given[0], to[0]))
    return Signals(
        prod(beside),
        length_of(call.node),
        {
            "x": const_pointer(x),
            "out": pointer(out),
            "rows": strided_axes(rows, 2),
            "x_step": i64(given[1]),
            "x_pair": i64(given[2]),
            "out_step": i64(to[1]),
            "out_pair": i64(to[2]),
        },
    )


def _signal_rank(array: Array, pairs: bool) -> int:
    return array.ndim - 1 if pairs else array.ndim


def _steps(array: Array, axis: int, pairs: bool) -> tuple[tuple[int, ...], int, int]:
    """Return strides of the remaining axes, along the signal, and from real to imaginary part."""
    strides = element_strides(array)
    own = strides[: _signal_rank(array, pairs)]
    return tuple(s for i, s in enumerate(own) if i != axis), own[axis], strides[-1] if pairs else 0


def types(dtype: str) -> str:
    """Return the types for storage and computation, defined at the start of every body."""
    return f"typedef {STORED[dtype]} T;\n    typedef {computed_type(dtype)} C;\n    "


SIGNALS = "Signals<const T>{x, x_step, x_pair}", "Signals<T>{out, out_step, out_pair}"
"""The input and the output in the words of fourier.cuh."""
HEADER = "fourier.cuh"


def complex_bytes(dtype: str) -> int:
    """Return the bytes of a complex number in the computation."""
    return 16 if dtype == "float64" else 8


def is_inverse(node: Node) -> bool:
    """Return True if the sum is over exp(+ ...)."""
    return node.op.name == "irfft" or bool(node.attrs.get("inverse"))


@dataclass(frozen=True)
class _BlockPlan:
    """Distribution of rows among blocks, and the memory of each block."""

    rows_at_once: int
    blocks: int
    nbytes: int
    in_shared: bool


def _block_plan(node: Node) -> _BlockPlan:
    n, rows = length_of(node), rows_of(node)
    size = complex_bytes(node.dtype.name)
    at_once = max(1, min(_ENOUGH // n, rows))
    nbytes = (1 + 2 * at_once) * n * size
    blocks = -(-rows // at_once)
    if fits_in_shared(nbytes):
        return _BlockPlan(at_once, blocks, nbytes, in_shared=True)
    return _BlockPlan(at_once, min(blocks, _at_once()), nbytes, in_shared=False)


def _at_once() -> int:
    """Return the number of blocks that run at the same time."""
    return _BLOCKS_EACH * driver().multiprocessors


def _bind(call: Call) -> Runner:
    node = call.node
    found = signals(call)
    if found.count == 0:
        return CudaRunner([])
    plan = _block_plan(node)
    dtype = node.dtype.name
    kind = f"Complex<{computed_type(dtype)}>"
    threads = threads_for(plan.rows_at_once * found.length)
    body = (
        f"{types(dtype)}DYNAMIC_SHARED(Complex<C>, shared);\n"
        "    Complex<C>* workspace = spare ? spare + blockIdx.x * size : shared;\n"
        f"    block_fourier<T, C, {KINDS[node.op.name]}>(workspace, {SIGNALS[0]}, {SIGNALS[1]}, "
        "rows, row_count, rows_at_once, n, inverse, radices);"
    )
    return CudaRunner(
        [
            header_launch(
                HEADER,
                "fourier",
                plan.blocks,
                threads,
                {
                    **found.parameters,
                    "spare": null_pointer(kind)
                    if plan.in_shared
                    else pointer(call.workspace, kind),
                    "size": u64(plan.nbytes // complex_bytes(dtype)),
                    "row_count": u32(found.count),
                    "rows_at_once": u32(plan.rows_at_once),
                    "n": u32(found.length),
                    "inverse": u32(is_inverse(node)),
                    "radices": _Radices.of(radices(found.length)),
                },
                body,
                bounded=False,
                shared=plan.nbytes if plan.in_shared else 0,
            )
        ]
    )


def _workspace(node: Node) -> int:
    plan = _block_plan(node)
    return 0 if plan.in_shared else plan.blocks * plan.nbytes


def _seconds(node: Node) -> float:
    n, plan = length_of(node), _block_plan(node)
    factors = radices(n)
    turns = -(-rows_of(node) // (plan.rows_at_once * min(plan.blocks, _at_once()) or 1))
    work = n * plan.rows_at_once * (sum(f if f > 4 else 1 for f in factors) + 2)
    slower = 1 if plan.in_shared else 4
    moved = 2 * rows_of(node) * n * complex_bytes(node.dtype.name)
    moved *= 1 if plan.in_shared else len(factors) + 2
    each = len(factors) * _STAGE_SECONDS + work / _ADDITIONS_PER_SECOND
    return 3e-6 + max(turns * slower * each, moved / _BYTES_PER_SECOND)


for _op in KINDS:
    TABLE.add(
        Kernel(
            _op,
            "cuda",
            "stockham",
            _bind,
            # Places within a block's rows are counted in 32 bits, also in multiples of a radix.
            lambda node: length_of(node) < 2**29 and rows_of(node) < 2**31,
            _workspace,
            estimate=_seconds,
        )
    )


_THREADS = 256
_C2C, _Z2Z = 0x29, 0x69
"""cufftType."""
_FORWARD, _INVERSE = -1, 1


@lru_cache(maxsize=64)
def _plan(card: int, n: int, kind: int, rows: int) -> Any:
    """A plan of the library; `card` is the current one, whose memory it works in."""
    return optional_import("cupy.cuda.cufft", PACKAGE, "op.fft").Plan1d(n, kind, rows)


def _cufft_bind(call: Call) -> Runner:
    node = call.node
    found = signals(call)
    dtype, kind = node.dtype.name, KINDS[node.op.name]
    double = dtype == "float64"
    plan = _plan(current_card(), found.length, _Z2Z if double else _C2C, found.count)
    shape = (found.count, found.length)
    memory = call.workspace[: _cufft_workspace(node)]
    dense = memory.view(np.complex128 if double else np.complex64).reshape(shape)
    count = found.count * found.length
    signature = KernelSignature(
        {
            **found.parameters,
            "dense": pointer(memory, f"Complex<{computed_type(dtype)}>"),
            "count": u64(count),
            "n": u32(found.length),
        }
    )
    blocks = blocks_for(count, _THREADS)
    pack, unpack = (
        header_launch(
            HEADER,
            name,
            blocks,
            _THREADS,
            signature,
            f"{types(dtype)}{name}_rows<T, C, {kind}>(dense, {which}, rows, count, n);",
            bounded=False,
        )
        for name, which in zip(("pack", "unpack"), SIGNALS, strict=True)
    )
    seen = cupy_array(dense)
    direction = _INVERSE if is_inverse(node) else _FORWARD
    return CudaRunner([pack, partial(_launch, plan, seen, direction), unpack])


def _launch(plan: Any, signals: Any, direction: int) -> None:
    # A plan has one stream at a time: another thread must not change it before the launch.
    with _one_at_a_time:
        plan.fft(signals, signals, direction)


_one_at_a_time = threading.Lock()


def _cufft_workspace(node: Node) -> int:
    return rows_of(node) * length_of(node) * complex_bytes(node.dtype.name)


for _cufft_op in KINDS:
    TABLE.add(
        Kernel(
            _cufft_op,
            "cuda",
            "cufft",
            _cufft_bind,
            lambda node: card_count() > 0 and 0 < rows_of(node) < 2**31 and length_of(node) < 2**31,
            _cufft_workspace,
            estimate=lambda node: 1.2e-5 + 8 * _cufft_workspace(node) / 3e12,
            # Plans have memory to work in, and a stream.
            shares=frozenset({"plans of cuFFT"}),
        )
    )
