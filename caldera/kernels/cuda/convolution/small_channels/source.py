"""The kernels' source; see small_channels.cuh and small_channels_weight_gradient.cuh."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from caldera.kernels.cuda.codegen.dtypes import STORED
from caldera.kernels.cuda.codegen.source import KernelTemplate

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
    """The kernel that adds up parts of gradients."""
    bounds, threads = f"__launch_bounds__({REDUCTION_THREADS})", str(REDUCTION_THREADS)
    begin = f'#include "{_HEADERS[WEIGHT_GRADIENT]}"\ntypedef {STORED[dtype]} T;\n'
    return begin + REDUCE_WEIGHT_GRADIENT.source(bounds, threads=threads)


def text(
    kernel: KernelTemplate, dtype: str, constants: Mapping[str, int], resident: int = 1
) -> str:
    """A kernel for numbers of a dtype, compiled with these constants."""
    return _text(kernel, dtype, tuple(constants.items()), resident)


@lru_cache(maxsize=1024)
def _text(
    kernel: KernelTemplate, dtype: str, constants: tuple[tuple[str, int], ...], resident: int
) -> str:
    values = ", ".join(f"{name} = {value}" for name, value in constants)
    begin = f'#include "{_HEADERS[kernel]}"\n'
    begin += _STRUCT.format(stored=STORED[dtype], constants=values)
    return begin + kernel.source(f"__launch_bounds__(S::THREADS, {resident})")
