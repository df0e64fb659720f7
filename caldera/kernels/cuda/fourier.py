"""Fourier transforms on a GPU by cuFFT, which is called through CuPy.

cuFFT transforms dense rows of complex numbers, so the input is converted to that form and the
result back. Plans are created when a call is bound, so a run only launches and can be captured.
"""

from __future__ import annotations

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
    pointer,
    strided_axes,
    u32,
    u64,
)
from caldera.kernels.cuda.runtime.device import cupy_array, current_card
from caldera.kernels.table import TABLE, Call, Kernel, Runner

_THREADS = 256
_C2C, _Z2Z = 0x29, 0x69
"""cufftType."""
_FORWARD, _INVERSE = -1, 1
KINDS = {"fft": "COMPLEX", "rfft": "REAL", "irfft": "TO_REAL"}


@dataclass(frozen=True)
class Signals:
    """Rows of a call: their count, their length, and their layout in the input and the output."""

    count: int
    length: int
    parameters: dict[str, Parameter]


def length_of(node: Node) -> int:
    """Return the length of the full transform."""
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


@lru_cache(maxsize=64)
def _plan(card: int, n: int, kind: int, rows: int) -> Any:
    """A plan of the library; `card` is the current one, whose memory it works in."""
    return optional_import("cupy.cuda.cufft", PACKAGE, "op.fft").Plan1d(n, kind, rows)


def _bind(call: Call) -> Runner:
    node = call.node
    found = signals(call)
    if found.count == 0:
        return CudaRunner([])
    dtype, kind = node.dtype.name, KINDS[node.op.name]
    double = dtype == "float64"
    plan = _plan(current_card(), found.length, _Z2Z if double else _C2C, found.count)
    shape = (found.count, found.length)
    memory = call.workspace[: _workspace(node)]
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


def _workspace(node: Node) -> int:
    return rows_of(node) * length_of(node) * complex_bytes(node.dtype.name)


for _op in KINDS:
    TABLE.add(
        Kernel(
            _op,
            "cuda",
            "cufft",
            _bind,
            lambda node: card_count() > 0 and rows_of(node) < 2**31 and length_of(node) < 2**31,
            _workspace,
            estimate=lambda node: 1.2e-5 + 8 * _workspace(node) / 3e12,
            # Plans have memory to work in, and a stream.
            shares=frozenset({"plans of cuFFT"}),
        )
    )
