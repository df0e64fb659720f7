"""Group normalisation and its gradient: sums of each image's channels, joined by groups.

What an image adds to the gradients of scale and shift is kept with its sums, and added up over the
images by a kernel of its own.
"""

from __future__ import annotations

import numpy as np

from caldera.core.graph.node import Node, Spec
from caldera.core.tensor.shape import size
from caldera.kernels.common.scratch import workspace_bytes
from caldera.kernels.cuda.codegen.signature import (
    Parameter,
    Signature,
    const_pointer,
    pointer,
    real,
)
from caldera.kernels.cuda.codegen.source import header_launch
from caldera.kernels.cuda.codegen.strided import strided_layout, strides_of
from caldera.kernels.cuda.normalisation.apply import input_gradient, normalise
from caldera.kernels.cuda.normalisation.layout import Layout, Sizes, layout_of, strided
from caldera.kernels.cuda.normalisation.statistics import (
    HEADER,
    gradient_sums,
    image_sums,
    in_workspace,
    parameter_gradients,
    workspace_specs,
)
from caldera.kernels.cuda.runtime.launch import CudaRunner, Launch
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

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
    partial, factors = in_workspace(call, _specs(call.node))
    signature = Signature(
        {
            "x": const_pointer(x),
            "x_image": layout.number(layout.image[0]),
            "x_channel": layout.number(layout.channel[0]),
            **_sizes(call.node, layout, partial),
            **layout.vectors(scale=const_pointer(scale), shift=const_pointer(shift)),
            **_matrices(layout, mean=pointer(mean), variance=pointer(variance)),
            "factors": pointer(factors),
        }
    )
    statistics = _over_groups(
        call.node,
        "group_statistics",
        signature,
        "warp_group_statistics(x, x_image, x_channel, partial, images, chunks, channels, groups, "
        f"count, eps, {strided('scale', 'shift')}, mean, mean_image, mean_group, variance, "
        "variance_image, variance_group, factors);",
    )
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
    partial, factors = in_workspace(call, _specs(call.node))
    given = {
        **layout.vectors(scale=const_pointer(scale)),
        **_matrices(layout, mean=const_pointer(mean), variance=const_pointer(variance)),
    }
    calls: list[Launch] = []
    if mean.size:
        each = layout.number(channels // call.node.attrs["groups"])
        sizes = _sizes(call.node, layout, partial)
        calls += [
            gradient_sums(
                layout,
                "group_gradient_sums",
                (x, g),
                partial,
                {"each": each, **given},
                (mean, "mean, mean_image, mean_group, each"),
                f"0.0, {strided('scale', 'scale')}, strided(variance, ({layout.integer})1)",
            ),
            _over_groups(
                call.node,
                "group_gradients",
                Signature({**sizes, **given, "factors": pointer(factors)}),
                "warp_group_gradients(partial, images, chunks, channels, groups, count, eps, "
                f"{strided('scale')}, mean, mean_image, mean_group, variance, variance_image, "
                "variance_group, factors);",
            ),
        ]
    # Images lie `chunks` sums apart.
    calls.append(
        parameter_gradients(
            partial,
            layout.sizes.images,
            layout.chunks * 2 * channels,
            strided_layout((channels,), (0,), [strides_of(for_scale), strides_of(for_shift)]),
            for_scale,
            for_shift,
            large=layout.large,
        )
    )
    if dx.size:
        calls.append(input_gradient(layout, [x, g, dx], factors, _BACKWARD * channels))
    return CudaRunner(calls)


# --- parameters that both share


def _sizes(node: Node, layout: Layout, partial: Array) -> dict[str, Parameter]:
    sizes, attrs = layout.sizes, node.attrs
    return {
        "partial": pointer(partial),
        "images": layout.number(sizes.images),
        "chunks": layout.number(layout.chunks),
        "channels": layout.number(sizes.channels),
        "groups": layout.number(attrs["groups"]),
        "count": real("double", sizes.length),
        "eps": real("double", attrs["eps"]),
    }


def _matrices(layout: Layout, **pointers: Parameter) -> dict[str, Parameter]:
    """Matrices with a number for each group of each image, with their strides."""
    found: dict[str, Parameter] = {}
    for name, each in pointers.items():
        assert isinstance(each.argument, np.ndarray)
        image, group = map(layout.number, strides_of(each.argument))
        found |= {name: each, f"{name}_image": image, f"{name}_group": group}
    return found


def _over_groups(node: Node, name: str, signature: Signature, body: str) -> Launch:
    """A launch with a warp for each group of each image."""
    groups = node.outputs[0].shape[0] * node.attrs["groups"]
    return header_launch(HEADER, name, -(-groups // _WARPS), 32 * _WARPS, signature, body)


# --- what they need


def _specs(node: Node) -> tuple[Spec, Spec]:
    """Sums of chunks, and factors."""
    images, channels, *rest = node.outputs[0].shape
    sizes = Sizes(images, channels, size(tuple(rest)))
    return workspace_specs(sizes, node, _FORWARD if len(node.inputs) == 3 else _BACKWARD)


def _in_place(node: Node) -> bool:
    # Statistics of (N, groups) must not be written over an image of the same shape.
    return len({spec.shape for spec in node.outputs[:2]}) == 2 or len(node.inputs) == 5


for _op, _its_bind in (("group_norm", _bind), ("group_norm_grad", _bind_gradient)):
    TABLE.add(
        Kernel(
            _op,
            "cuda",
            "chunks",
            _its_bind,
            workspace=lambda node: workspace_bytes(*_specs(node)),
            in_place=_in_place,
        )
    )
