"""Tensor-core convolutions for few channels, and their CUDA source.

Libraries are made for many channels: with few, most of their arithmetic is padding. Images are
channels-last, and filters have the layout of variables; other kernels serve the remaining
layouts. The source is in small_channels.cuh and small_channels_weight_gradient.cuh.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import lru_cache, partial

import numpy as np

from caldera.core.graph import NHWC, Node, Spec, same_memory
from caldera.core.memory.software import address_of
from caldera.core.tensor import HALVES, float16, float32, size
from caldera.kernels.common.binding import Scratch, workspace_bytes
from caldera.kernels.common.geometry import Correlation, Geometry, forward, input_phases
from caldera.kernels.cuda import convolution
from caldera.kernels.cuda.codegen import (
    STORED,
    CudaRunner,
    KernelLaunch,
    KernelTemplate,
    lies_dense,
)
from caldera.kernels.cuda.convolution.small_channels.tilings import (
    RANKS,
    CorrelationTiling,
    correlation_tilings,
)
from caldera.kernels.cuda.convolution.small_channels.weight_gradient_tilings import (
    WeightGradientTiling,
    weight_gradient_tilings,
)
from caldera.kernels.cuda.runtime import device
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.table import TABLE, Call, Kernel, Runner

_STRUCT = """typedef {stored} T;
struct S {{
    static const int {constants};
}};
"""
CORRELATE = KernelTemplate(
    "correlate_small_channels",
    {
        "out": "T*",
        "images": "const T* __restrict__",
        "filters": "const T* __restrict__",
        "pixel_tiles": "PixelTiles",
    },
    """{{
    DYNAMIC_SHARED(char, shared);
    block_correlate_small_channels<T, S>(shared, out, images, filters, pixel_tiles);
}}
""",
)
WEIGHT_GRADIENT = KernelTemplate(
    "small_channels_weight_gradient",
    {
        "parts": "float*",
        "images": "const T* __restrict__",
        "gradients": "const T* __restrict__",
        "pixel_tiles": "PixelTiles",
    },
    """{{
    DYNAMIC_SHARED(char, shared);
    block_weight_gradient<T, S>(shared, parts, images, gradients, pixel_tiles);
}}
""",
)
REDUCE_WEIGHT_GRADIENT = KernelTemplate(
    "reduce_weight_gradient",
    {
        "out": "T*",
        "parts": "const float* __restrict__",
        "count": "i32",
        "filter": "Filter",
    },
    """{{
    block_reduce_weight_gradient<T, {threads} / 32>(out, parts, count, filter);
}}
""",
)
_HEADERS = {CORRELATE: "small_channels.cuh", WEIGHT_GRADIENT: "small_channels_weight_gradient.cuh"}
REDUCTION_THREADS = 256


def reduction_text(dtype: str) -> str:
    """Return the kernel that adds up parts of gradients."""
    bounds, threads = f"__launch_bounds__({REDUCTION_THREADS})", str(REDUCTION_THREADS)
    begin = f'#include "{_HEADERS[WEIGHT_GRADIENT]}"\ntypedef {STORED[dtype]} T;\n'
    return begin + REDUCE_WEIGHT_GRADIENT.source(bounds, threads=threads)


def text(
    kernel: KernelTemplate, dtype: str, constants: Mapping[str, int], resident: int = 1
) -> str:
    """Return a kernel for numbers of a dtype, compiled with these constants."""
    return _text(kernel, dtype, tuple(constants.items()), resident)


@lru_cache(maxsize=1024)
def _text(
    kernel: KernelTemplate, dtype: str, constants: tuple[tuple[str, int], ...], resident: int
) -> str:
    values = ", ".join(f"{name} = {value}" for name, value in constants)
    begin = f'#include "{_HEADERS[kernel]}"\n'
    begin += _STRUCT.format(stored=STORED[dtype], constants=values)
    return begin + kernel.source(f"__launch_bounds__(S::THREADS, {resident})")


MOST_CHANNELS = 64
MOST_TAPS = 11
FEWEST_PIXELS = 128
"""Results below which blocks would be mostly empty."""
ALIGNMENT = 16
"""Number of bytes that a thread reads and writes per access."""
LARGE_FLOPS = 5e9
"""Work from which on different ways are worth measuring. For less, all libraries that were measured
on an H200 took 1.0 to 4.3 times as long, and compiling rivals would take longer than they save."""
LARGE_IMAGES = 1 << 22
"""Number of elements from which libraries are faster for the channel counts of these kernels."""
PRIORITIES = (12, 9)
"""Priorities of the kernels: before products of 1x1 convolutions, and after cuDNN's second plan."""
FILTERS = {"conv2d": 1, "conv2d_input": 1, "conv2d_weight": 2}
"""Index of the filters among the inputs and the result; the remaining arrays are images."""


# --- which convolutions


def _supports(rank: int, node: Node) -> bool:
    if rank and not device.may_measure():
        return False
    geometry, attrs = Geometry.of(node), node.attrs
    is_rounded = node.dtype == float32 and attrs.get("compute") == "tf32"
    if node.dtype not in HALVES and not is_rounded:
        return False
    if node.dtype != float16 and not driver().card.has_tf32:
        # Without tf32, its tensor cores support only float16.
        return False
    specs = [*(given.outputs[0] for given in node.inputs), node.spec]
    if any(0 in spec.shape for spec in specs) or attrs["groups"] != 1:
        return False
    if max(geometry.filters[:2]) > MOST_CHANNELS or max(geometry.taps) > MOST_TAPS:
        return False
    if attrs["dilation"] != (1, 1) or _is_slow(node, geometry):
        return False
    if node.op.name == "conv2d_input" and attrs["stride"] != (1, 1):
        return False
    if not all(
        same_memory(spec.shape, spec.order, None if index == FILTERS[node.op.name] else NHWC)
        for index, spec in enumerate(specs)
    ):
        return False
    work = _work(node)
    return work.batch * size(work.target) >= FEWEST_PIXELS and rank < len(_tilings(node))


def _is_slow(node: Node, geometry: Geometry) -> bool:
    """Return True if a library is faster, according to measurements on an H200."""
    if min(geometry.filters[:2]) < MOST_CHANNELS:
        return False
    return node.dtype == float32 or node.inputs[0].outputs[0].size > LARGE_IMAGES


def _tilings(node: Node) -> tuple[CorrelationTiling, ...] | tuple[WeightGradientTiling, ...]:
    """Return the tilings that blocks may use, the best guess first."""
    itemsize, card = node.dtype.itemsize, driver().card
    if node.op.name == "conv2d_weight":
        return weight_gradient_tilings(_work(node), itemsize, card)
    return correlation_tilings(_work(node), node.op.name == "conv2d_input", itemsize, card)


def _work(node: Node) -> Correlation:
    geometry = Geometry.of(node)
    if node.op.name != "conv2d_input":
        return forward(geometry)
    ((_, _, work),) = input_phases(geometry)
    return work


# --- kernels


class FilterNumbers(ctypes.Structure):
    """`Filter` of small_channels_weight_gradient.cuh."""

    _fields_ = [(name, ctypes.c_int) for name in ("results", "width", "terms", "channels", "taps")]


def _bind(rank: int, call: Call) -> Runner:
    arrays = (*call.inputs, *call.outputs)
    filters = FILTERS[call.node.op.name]
    for index, array in enumerate(arrays):
        order = None if index == filters else NHWC
        if address_of(array) % ALIGNMENT or not lies_dense(array, order):
            return CudaRunner(convolution.launches(call))
    tiling = _tilings(call.node)[rank]
    if isinstance(tiling, CorrelationTiling):
        return CudaRunner([_correlation(tiling, call)])
    return CudaRunner(_gradient(tiling, call))


def _correlation(shape: CorrelationTiling, call: Call) -> KernelLaunch:
    (out,), (images, filters) = call.outputs, call.inputs
    source = text(CORRELATE, out.dtype.name, shape.constants, shape.least_resident)
    signature = CORRELATE.bind(
        out=out,
        images=images,
        filters=filters,
        pixel_tiles=shape.pixel_tiles.numbers(out.itemsize),
    )
    threads = 32 * shape.warps
    return KernelLaunch(source, CORRELATE.name, shape.grid(), threads, signature, shape.shared)


def _gradient(tiling: WeightGradientTiling, call: Call) -> list[KernelLaunch]:
    (out,), (images, gradient) = call.outputs, call.inputs
    dtype = out.dtype.name
    parts = Scratch(call.workspace).array((tiling.blocks, tiling.partial), float32)
    first = KernelLaunch(
        text(WEIGHT_GRADIENT, dtype, tiling.constants, tiling.least_resident),
        WEIGHT_GRADIENT.name,
        (tiling.blocks, tiling.parts, 1),
        tiling.threads,
        WEIGHT_GRADIENT.bind(
            parts=parts,
            images=images,
            gradients=gradient,
            pixel_tiles=tiling.pixel_tiles.numbers(out.itemsize),
        ),
        tiling.shared,
    )
    results, channels, *taps = out.shape
    filters = FilterNumbers(
        results=results,
        width=tiling.width,
        terms=tiling.terms,
        channels=channels,
        taps=taps[0] * taps[1],
    )
    second = KernelLaunch(
        reduction_text(dtype),
        REDUCE_WEIGHT_GRADIENT.name,
        -(-tiling.partial // 32),
        REDUCTION_THREADS,
        REDUCE_WEIGHT_GRADIENT.bind(out=out, parts=parts, count=tiling.blocks, filter=filters),
    )
    return [first, second]


def _workspace(rank: int, node: Node) -> int:
    tiling = _tilings(node)[rank]
    if isinstance(tiling, CorrelationTiling):
        return 0
    return workspace_bytes(Spec((tiling.blocks, tiling.partial), np.dtype(np.float32)))


def _is_small(node: Node) -> bool:
    return node.op.count_flops(node) < LARGE_FLOPS


def _supports_small(node: Node) -> bool:
    return _is_small(node) and _supports(0, node)


def _supports_large(rank: int, node: Node) -> bool:
    return not _is_small(node) and _supports(rank, node)


for _op in FILTERS:
    TABLE.add(
        Kernel(
            _op,
            "cuda",
            "few channels",
            partial(_bind, 0),
            _supports_small,
            partial(_workspace, 0),
            priority=PRIORITIES[0],
            measured=False,
        )
    )
    for _rank in range(RANKS):
        TABLE.add(
            Kernel(
                _op,
                "cuda",
                f"few channels, way {_rank + 1}",
                partial(_bind, _rank),
                partial(_supports_large, _rank),
                partial(_workspace, _rank),
                priority=PRIORITIES[_rank],
            )
        )
