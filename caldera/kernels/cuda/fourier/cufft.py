"""Fourier transforms by cuFFT, through CuPy: for long rows, and lengths with large prime factors.

The library transforms dense rows of complex numbers, so what is given is brought into that form and
back. Plans are made when a call is bound, so a run only launches and can be captured.
"""

from __future__ import annotations

import threading
from functools import lru_cache, partial
from typing import Any

import numpy as np

from caldera.base.registry import optional_import
from caldera.core.graph.node import Node
from caldera.core.memory.gpus import PACKAGE, card_count
from caldera.kernels.cuda.codegen.kernel import (
    CudaRunner,
    KernelSignature,
    computed_type,
    header_launch,
    pointer,
    u32,
    u64,
)
from caldera.kernels.cuda.codegen.strides import blocks_for
from caldera.kernels.cuda.fourier.stockham import (
    HEADER,
    KINDS,
    SIGNALS,
    complex_bytes,
    is_inverse,
    length_of,
    rows_of,
    signals,
    types,
)
from caldera.kernels.cuda.runtime.device import cupy_array, current_card
from caldera.kernels.table import TABLE, Call, Kernel, Runner

_THREADS = 256
_C2C, _Z2Z = 0x29, 0x69
"""cufftType."""
_FORWARD, _INVERSE = -1, 1


@lru_cache(maxsize=64)
def _plan(card: int, n: int, kind: int, rows: int) -> Any:
    """A plan of the library; `card` is the current one, whose memory it works in."""
    return optional_import("cupy.cuda.cufft", PACKAGE, "op.fft").Plan1d(n, kind, rows)


def _bind(call: Call) -> Runner:
    node = call.node
    found = signals(call)
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


def _supports(node: Node) -> bool:
    return card_count() > 0 and 0 < rows_of(node) < 2**31 and length_of(node) < 2**31


def _workspace(node: Node) -> int:
    return rows_of(node) * length_of(node) * complex_bytes(node.dtype.name)


def _seconds(node: Node) -> float:
    return 1.2e-5 + 8 * _workspace(node) / 3e12


for _op in KINDS:
    TABLE.add(
        Kernel(
            _op,
            "cuda",
            "cufft",
            _bind,
            _supports,
            _workspace,
            estimate=_seconds,
            # Plans have memory to work in, and a stream.
            shares=frozenset({"plans of cuFFT"}),
        )
    )
