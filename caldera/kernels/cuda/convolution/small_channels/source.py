"""The kernels' source; see small_channels.cuh and small_channels_weight_gradient.cuh."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from caldera.kernels.cuda.codegen.dtypes import STORED

CORRELATE = """#include "small_channels.cuh"
typedef {stored} T;
struct S {{
    static const int {constants};
}};
extern "C" __global__ void __launch_bounds__(S::THREADS, {resident}) correlate_few(
    T* out, const T* __restrict__ images, const T* __restrict__ filters, Cover cover) {{
    DYNAMIC_SHARED(char, shared);
    block_correlate_few<T, S>(shared, out, images, filters, cover);
}}
"""
WEIGH = """#include "small_channels_weight_gradient.cuh"
typedef {stored} T;
struct S {{
    static const int {constants};
}};
extern "C" __global__ void __launch_bounds__(S::THREADS, {resident}) weigh_few(
    float* parts, const T* __restrict__ images, const T* __restrict__ slopes, Cover cover) {{
    DYNAMIC_SHARED(char, shared);
    block_weigh_few<T, S>(shared, parts, images, slopes, cover);
}}
"""
ADD_PARTS = """#include "small_channels_weight_gradient.cuh"
typedef {stored} T;
extern "C" __global__ void __launch_bounds__({threads}) add_parts(
    T* out, const float* __restrict__ parts, i32 count, Filter filter) {{
    block_add_parts<T, {threads} / 32>(out, parts, count, filter);
}}
"""
ADDING_THREADS = 256


def adding_text(dtype: str) -> str:
    """The kernel that adds up parts of gradients."""
    return ADD_PARTS.format(stored=STORED[dtype], threads=ADDING_THREADS)


def text(kernel: str, dtype: str, constants: Mapping[str, int], resident: int = 1) -> str:
    """A kernel for numbers of a dtype, compiled with these constants."""
    return _text(kernel, dtype, tuple(constants.items()), resident)


@lru_cache(maxsize=1024)
def _text(kernel: str, dtype: str, constants: tuple[tuple[str, int], ...], resident: int) -> str:
    values = ", ".join(f"{name} = {value}" for name, value in constants)
    return kernel.format(stored=STORED[dtype], constants=values, resident=resident)
