"""Local response normalisation and its gradient: see include/response.cuh."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_double, c_float
from dataclasses import dataclass

from caldera.graph.node import Node
from caldera.kernels.common.scratch import compute_dtype
from caldera.kernels.cuda.codegen.dtypes import computed_type
from caldera.kernels.cuda.codegen.source import flags, kernel_source, type_of
from caldera.kernels.cuda.codegen.strided import (
    Walk,
    index,
    index_type,
    indices,
    is_large,
    strides_of,
    walk,
)
from caldera.kernels.cuda.runtime.launch import Argument, CudaRunner, Launch
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner
from caldera.tensor.shape import size

_HEADER = "local_response.cuh"
_THREADS = 256
_ROWS_OF_TILE, _CHANNELS_OF_TILE = (8, 32), (64, 16)
"""Of a block's tile where channels lie side by side, and where rows do."""
_SHARED = 48 << 10
"""Bytes of shared memory that every kernel may have."""


@dataclass(frozen=True)
class _Work:
    """The arrays (x first) as rows by channels."""

    arrays: Sequence[Array]
    rows: Walk
    steps: tuple[int, ...]
    last: bool
    large: bool

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> _Work:
        x = arrays[0]
        strides = [strides_of(array) for array in arrays]
        rows = walk(x.shape, [a for a in range(x.ndim) if a != 1], strides)
        steps = tuple(own[1] for own in strides)
        last = abs(steps[0]) <= abs(rows.inner[0]) or size(rows.sizes) == 1
        return cls(arrays, rows, steps, last, is_large(*arrays))

    @property
    def flag(self) -> str:
        """The first template argument of the functions."""
        return flags(self.last)

    def parameters(self, pointers: Sequence[str], kind: str) -> list[str]:
        """Those that both kernels have."""
        integer = index_type(self.large)
        return [
            *pointers, f"Walk<{self.rows.rank}, {len(pointers)}, {integer}> rows",
            *(f"{integer} step{i}" for i in range(len(pointers))), f"Response<{integer}> in",
            f"{kind} alpha", f"{kind} beta", f"{kind} k",
        ]  # fmt: skip

    def arguments(self, node: Node, tile: tuple[int, int]) -> list[Argument]:
        """The same, for a node whose tiles have these rows and channels."""
        attrs, channels = node.attrs, self.arrays[0].shape[1]
        before, after = _window(node)
        number = c_double if compute_dtype(self.arrays[0].dtype).itemsize == 8 else c_float
        sizes = [size(self.rows.sizes), channels, before, after, *tile]
        return [
            *self.arrays, indices(self.rows.numbers, self.large),
            *(index(step, self.large) for step in self.steps), indices(sizes, self.large),
            number(attrs["alpha"] / attrs["window"]), number(attrs["beta"]), number(attrs["k"]),
        ]  # fmt: skip


def _window(node: Node) -> tuple[int, int]:
    """The channels below and above that count; where there is none, nothing is missed."""
    window, channels = node.attrs["window"], node.outputs[0].shape[1]
    return min(window // 2, channels), min((window - 1) // 2, channels)


def _bind(call: Call) -> Runner:
    (x,), (y,) = call.inputs, call.outputs
    if y.size == 0:
        return CudaRunner([])
    work = _Work.of([x, y])
    stored = type_of(x)
    source = kernel_source(
        _HEADER, "local_response", _THREADS,
        work.parameters([f"const {stored}* x", f"{stored}* y"], computed_type(x.dtype.name)),
        f"respond<{work.flag}>(x, y, rows, step0, step1, in, alpha, beta, k);",
    )  # fmt: skip
    blocks = -(-y.size // _THREADS)
    arguments = work.arguments(call.node, (1, 1))
    return CudaRunner([Launch(source, "local_response", blocks, _THREADS, arguments)])


def _bind_gradient(call: Call) -> Runner:
    (g, x), (dx,) = call.inputs, call.outputs
    if dx.size == 0:
        return CudaRunner([])
    work = _Work.of([x, g, dx])
    stored = type_of(x)
    source = kernel_source(
        _HEADER, "local_response_slopes", _THREADS,
        work.parameters(
            [f"const {stored}* x", f"const {stored}* g", f"{stored}* dx"],
            computed_type(x.dtype.name),
        ),
        f"block_response_slopes<{work.flag}>("
        "x, g, dx, rows, step0, step1, step2, in, alpha, beta, k);",
    )  # fmt: skip
    each = 2 * compute_dtype(x.dtype).itemsize
    way = 0 if work.last else 1
    rows, channels = _ROWS_OF_TILE[way], _CHANNELS_OF_TILE[way]
    width = channels + sum(_window(call.node))
    while rows > 1 and rows * width * each > _SHARED:
        rows //= 2
    tiles = -(-size(work.rows.sizes) // rows) * -(-x.shape[1] // channels)
    return CudaRunner([Launch(
        source, "local_response_slopes", tiles, _THREADS,
        work.arguments(call.node, (rows, channels)), shared=rows * width * each,
    )])  # fmt: skip


TABLE.add(Kernel("local_response_norm", "cuda", "rows", _bind))
TABLE.add(Kernel("local_response_norm_grad", "cuda", "tiles", _bind_gradient))
