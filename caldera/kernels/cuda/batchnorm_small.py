"""Batch normalisation of small images, channels last, and its gradient: one launch each.

Three launches take longer than the work of a small network's layer. Here all blocks are on the card
at once and meet after their sums, see include/norm_whole.cuh; images stay in the cache meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_double
from dataclasses import replace

from caldera.graph.node import Node
from caldera.graph.order import NHWC
from caldera.kernels.cuda import batchnorm
from caldera.kernels.cuda.batchnorm import (
    eps_of,
    has_relu,
    in_place,
    room_of,
    scratch_of,
    slopes_of,
    statistics_of,
)
from caldera.kernels.cuda.driver import driver
from caldera.kernels.cuda.elements import computed_type
from caldera.kernels.cuda.images import THREADS, Layout, layout_of
from caldera.kernels.cuda.launch import Argument, CudaRunner, Launch
from caldera.kernels.cuda.source import flags, type_of
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

_BLOCKS_EACH = 2
"""Blocks on a multiprocessor."""
_MOST_BLOCKS = 264
"""Blocks that share the images: 2 on each of 132 multiprocessors."""
_SHARED = 8 * (32 * 128) + 16
"""Bytes: sums of threads by columns, as norm_whole.cuh has them, and two numbers."""
_FEWEST, _MOST = 1 << 10, 1 << 23
"""Elements of an image."""
_MOST_CHANNELS = 256


def _layout(images: Sequence[Array], axis: int) -> Layout | None:
    """How they lie, if all blocks can be there at once."""
    layout = replace(layout_of(images, axis, by_image=False), blocks=_MOST_BLOCKS)
    fits = 2 * THREADS * layout.together * 8 < _SHARED
    if layout.planes or not fits or layout.grid > _BLOCKS_EACH * driver().multiprocessors:
        return None
    return layout


def _launch(
    layout: Layout, name: str, parameters: Sequence[str], body: str, arguments: Sequence[Argument]
) -> Runner:
    source = (
        '#include "norm_whole.cuh"\n'
        f'extern "C" __global__ void __launch_bounds__({THREADS}, {_BLOCKS_EACH}) {name}('
        f"{', '.join(parameters)}) {{\n    DYNAMIC_SHARED(double, kept);\n    {body}\n}}\n"
    )
    return CudaRunner(
        [Launch(source, name, layout.grid, layout.block, arguments, _SHARED, together=True)]
    )


def _bind(call: Call) -> Runner:
    x, scale, shift, *more = call.inputs
    y, mean, variance = call.outputs
    layout = _layout([x, y, *more], call.node.attrs["axis"])
    if layout is None:
        return batchnorm.bind(call)
    partial_sums, factors = scratch_of(call)
    kind, vector, added = computed_type(x.dtype.name), f"const {type_of(scale)}", bool(more)
    stored, count = type_of(x), 2 + len(more)
    options = f"{flags(has_relu(call.node), added)}, {layout.together}"
    return _launch(
        layout, "batch_norm_whole",
        [f"const {stored}* x", f"{stored}* y", f"const {stored}* more",
         f"{layout.images_type(1)} one", f"{layout.images_type(count)} in", "double* partial",
         f"{layout.integer} channels", "double count", "double eps", f"{kind}* factors",
         f"{layout.integer} x_step",
         *layout.vector_parameters(scale=vector, shift=vector, mean=kind, variance=kind)],
        f"{statistics_of(layout, x, scale, kind)}\n"
        f"    grid_normalise<{options}>(x, y, more, one, in, partial, kept, each);",
        [x, y, more[0] if added else x, layout.images(0), layout.images(*range(count)),
         partial_sums, layout.number(layout.sizes.channels), c_double(layout.sizes.length),
         eps_of(call.node), factors, layout.number(layout.channel[0]),
         *layout.vectors(scale, shift, mean, variance)],
    )  # fmt: skip


def _bind_gradient(call: Call) -> Runner:
    g, x, scale, *shifts, mean, variance = call.inputs
    dx, for_scale, for_shift = call.outputs
    layout = _layout([x, g, dx], call.node.attrs["axis"])
    if layout is None:
        return batchnorm.bind_gradient(call)
    relu = bool(shifts)
    shift = shifts[0] if relu else scale
    partial_sums, factors = scratch_of(call)
    vector, statistics = f"const {type_of(scale)}", f"const {type_of(mean)}"
    return _launch(
        layout, "batch_slopes_whole",
        [f"const {type_of(x)}* x", f"const {type_of(g)}* g", f"{type_of(dx)}* dx",
         f"{layout.images_type(2)} two", f"{layout.images_type(3)} in", "double* partial",
         f"{layout.integer} channels", "double count", "double eps", f"{type_of(factors)}* factors",
         *layout.vector_parameters(
             scale=vector, shift=vector, mean=statistics, variance=statistics,
             for_scale=type_of(for_scale), for_shift=type_of(for_shift),
         )],
        f"{slopes_of(layout, scale, mean, factors, relu=relu)}\n"
        f"    Means<{type_of(mean)}, {layout.integer}> means = {{mean, 0, mean_step, 1}};\n"
        f"    grid_slopes<{flags(relu)}, {layout.together}>("
        "x, g, dx, two, in, means, partial, kept, each);",
        [x, g, dx, layout.images(0, 1), layout.images(0, 1, 2), partial_sums,
         layout.number(layout.sizes.channels), c_double(layout.sizes.length), eps_of(call.node),
         factors, *layout.vectors(scale, shift, mean, variance, for_scale, for_shift)],
    )  # fmt: skip


def _is_small(node: Node) -> bool:
    """Whether images are small and lie channels last."""
    image = node.outputs[0]
    if len(image.shape) != len(NHWC) or node.attrs["axis"] != 1 or image.order != NHWC:
        return False
    return _FEWEST <= image.size <= _MOST and image.shape[1] <= _MOST_CHANNELS


for _op, _its_bind in (
    ("batch_norm", _bind),
    ("batch_norm_relu", _bind),
    ("batch_norm_grad", _bind_gradient),
    ("batch_norm_relu_grad", _bind_gradient),
):
    TABLE.add(Kernel(
        _op, "cuda", "at once", _its_bind, _is_small, room_of, priority=1,
        in_place=in_place, shares=frozenset({"norm_counters"}),
    ))  # fmt: skip
