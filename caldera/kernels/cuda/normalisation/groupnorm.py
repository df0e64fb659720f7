"""Group normalisation and its gradient: sums of each image's channels, joined by groups.

What an image adds to the gradients of scale and shift is kept with its sums, and added up over the
images by a kernel of its own.
"""

from __future__ import annotations

from ctypes import c_double

from caldera.graph.node import Node, Spec
from caldera.kernels.common.scratch import Scratch, workspace_bytes
from caldera.kernels.cuda.codegen.source import flags, kernel_source, type_of
from caldera.kernels.cuda.codegen.strided import strides_of, walk
from caldera.kernels.cuda.normalisation.layout import THREADS, Layout, Sizes, layout_of
from caldera.kernels.cuda.normalisation.statistics import (
    HEADER,
    image_sums,
    normalise,
    over_elements,
    parameter_slopes,
    slopes,
)
from caldera.kernels.cuda.runtime.launch import Argument, CudaRunner, Launch
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner
from caldera.tensor.shape import size

_FORWARD, _BACKWARD = 3, 4
"""Numbers a channel of an image that the last kernel works with."""
_CHANNELS = 1
_WARPS = 4
"""Groups that a block takes."""


def _bind(call: Call) -> Runner:
    x, scale, shift = call.inputs
    y, mean, variance = call.outputs
    layout = layout_of([x, y], _CHANNELS, by_image=True)
    if mean.size == 0:
        return CudaRunner([])
    partial, factors = _scratch(call)
    kind, parameters = type_of(mean), f"const {type_of(scale)}"
    integer = layout.integer
    source = kernel_source(
        HEADER, "group_statistics", 32 * _WARPS,
        [f"const {type_of(x)}* x", f"{integer} x_image", f"{integer} x_channel",
         *_sizes_parameters(integer), *layout.vector_parameters(scale=parameters, shift=parameters),
         *_matrix_parameters(integer, mean=kind, variance=kind), f"{kind}* factors"],
        "warp_group_statistics(x, x_image, x_channel, partial, images, chunks, channels, groups, "
        "count, eps, strided(scale, scale_step), strided(shift, shift_step), mean, mean_image, "
        "mean_group, variance, variance_image, variance_group, factors);",
    )  # fmt: skip
    statistics = _over_groups(call.node, source, "group_statistics", [
        x, layout.number(layout.image[0]), layout.number(layout.channel[0]),
        *_sizes(call.node, layout, partial), *layout.vectors(scale, shift),
        *_matrices(layout, mean, variance), factors,
    ])  # fmt: skip
    calls = [image_sums(layout, x, partial), statistics]
    if x.size:
        calls.append(normalise(layout, [x, y], factors, _FORWARD * layout.sizes.channels))
    return CudaRunner(calls)


def _bind_gradient(call: Call) -> Runner:
    g, x, scale, mean, variance = call.inputs
    dx, for_scale, for_shift = call.outputs
    layout = layout_of([x, g, dx], _CHANNELS, by_image=True)
    channels = layout.sizes.channels
    if channels == 0:
        return CudaRunner([])
    partial, factors = _scratch(call)
    integer, parameters = layout.integer, f"const {type_of(scale)}"
    statistics = _matrix_parameters(integer, mean=f"const {type_of(mean)}",
                                    variance=f"const {type_of(variance)}")  # fmt: skip
    vector = layout.vector_parameters(scale=parameters)
    sums = kernel_source(
        HEADER, "group_slope_sums", THREADS,
        [f"const {type_of(x)}* x", f"const {type_of(g)}* g", f"{layout.images_type(2)} in",
         f"{integer} each", *vector, *statistics, "double* partial"],
        f"{layout.shared}\n"
        f"    Means<{type_of(mean)}, {integer}> means = {{mean, mean_image, mean_group, each}};\n"
        f"    block_slope_sums<{flags(False)}, {layout.options}>(x, g, in, means, 0.0, "
        "strided(scale, scale_step), strided(scale, scale_step), "
        f"strided(variance, ({integer})1), partial, kept);",
    )  # fmt: skip
    groups = kernel_source(
        HEADER, "group_slopes", 32 * _WARPS,
        [*_sizes_parameters(integer), *vector, *statistics, f"{type_of(factors)}* factors"],
        "warp_group_slopes(partial, images, chunks, channels, groups, count, eps, "
        "strided(scale, scale_step), mean, mean_image, mean_group, variance, variance_image, "
        "variance_group, factors);",
    )  # fmt: skip
    given = _matrices(layout, mean, variance)
    calls: list[Launch] = []
    if mean.size:
        each = channels // call.node.attrs["groups"]
        calls += [
            over_elements(layout, sums, "group_slope_sums", [
                x, g, layout.images(0, 1), layout.number(each), *layout.vectors(scale), *given,
                partial,
            ]),
            _over_groups(call.node, groups, "group_slopes", [
                *_sizes(call.node, layout, partial), *layout.vectors(scale), *given, factors,
            ]),
        ]  # fmt: skip
    # Images lie `chunks` sums apart.
    calls.append(parameter_slopes(
        partial, layout.sizes.images, layout.chunks * 2 * channels,
        walk((channels,), (0,), [strides_of(for_scale), strides_of(for_shift)]),
        for_scale, for_shift, large=layout.large,
    ))  # fmt: skip
    if dx.size:
        calls.append(slopes(layout, [x, g, dx], factors, _BACKWARD * channels))
    return CudaRunner(calls)


# --- parameters that both share


def _sizes_parameters(integer: str) -> list[str]:
    counts = ("images", "chunks", "channels", "groups")
    return ["double* partial", *(f"{integer} {name}" for name in counts), "double count",
            "double eps"]  # fmt: skip


def _sizes(node: Node, layout: Layout, partial: Array) -> list[Argument]:
    sizes, attrs = layout.sizes, node.attrs
    counts = (sizes.images, layout.chunks, sizes.channels, attrs["groups"])
    return [partial, *map(layout.number, counts), c_double(sizes.length), c_double(attrs["eps"])]


def _matrix_parameters(integer: str, **types: str) -> list[str]:
    """Those of matrices with a number for each group of each image."""
    return [
        text
        for name, kind in types.items()
        for text in (f"{kind}* {name}", f"{integer} {name}_image", f"{integer} {name}_group")
    ]


def _matrices(layout: Layout, *arrays: Array) -> list[Argument]:
    return [part for each in arrays for part in (each, *map(layout.number, strides_of(each)))]


def _over_groups(node: Node, source: str, name: str, arguments: list[Argument]) -> Launch:
    """A launch with a warp for each group of each image."""
    groups = node.outputs[0].shape[0] * node.attrs["groups"]
    return Launch(source, name, -(-groups // _WARPS), 32 * _WARPS, arguments)


# --- what they need


def _specs(node: Node) -> tuple[Spec, Spec]:
    """Sums of chunks, and factors."""
    images, channels, *rest = node.outputs[0].shape
    sizes = Sizes(images, channels, size(tuple(rest)))
    return sizes.partial(), sizes.factors(node, _FORWARD if len(node.inputs) == 3 else _BACKWARD)


def _scratch(call: Call) -> list[Array]:
    scratch = Scratch(call.workspace)
    return [scratch.array(spec.shape, spec.dtype) for spec in _specs(call.node)]


def _in_place(node: Node) -> bool:
    # Statistics of (N, groups) must not be written over an image of the same shape.
    return len({spec.shape for spec in node.outputs[:2]}) == 2 or len(node.inputs) == 5


for _op, _its_bind in (("group_norm", _bind), ("group_norm_grad", _bind_gradient)):
    TABLE.add(
        Kernel(
            _op, "cuda", "chunks", _its_bind, workspace=lambda node: workspace_bytes(*_specs(node)),
            in_place=_in_place,
        )
    )  # fmt: skip
